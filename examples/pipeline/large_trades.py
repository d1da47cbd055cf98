"""A streaming query: trades from a topic, the large ones to a queue, each exactly once, whatever is killed meanwhile.

    python large_trades.py [--master 'local[*]'] [--url fairlead://localhost] [--checkpoint ./large-trades]

It reads what is there, and ends; run it again and it goes on where it was. The master may be a cluster
(spark://host:7077) or a server of Spark Connect (sc://host): nothing else changes. Trades are JSON, as the tutorial
(docs/pipeline-tutorial.md) makes them; the topic keeps its messages (retain_messages=-1).
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from fairlead.pipeline.decode import decode
from fairlead.pipeline.session import spark_session

TRADE = "symbol string, price double, amount bigint"
LARGE = 1000.0


def large(trades: DataFrame) -> DataFrame:
    """Those worth more than 1000, as messages; what cannot be read goes to a destination of its own."""
    found = decode(trades, TRADE).withColumn("worth", f.expr("value.price * value.amount"))
    return found.where(f"undecodable is not null or worth > {LARGE}").select(
        f.when(f.col("undecodable").isNull(), "large-trades").otherwise("not-trades").alias("destination"),
        "key",
        "body",
        f.when(f.col("worth").isNotNull(), f.create_map(f.lit("worth"), f.col("worth").cast("string"))).alias(
            "properties"
        ),
    )


def run(spark: SparkSession, url: str, checkpoint: str) -> int:
    """Everything that is there, to its end; how many trades were looked at."""
    trades = (
        spark.readStream.format("fairlead")
        .option("url", url)
        .option("destination", "trades")
        .option("columns", "key, body")
        .option("maxRowsPerTrigger", 250_000)
        .load()
    )
    query = (
        large(trades)
        .writeStream.format("fairlead")
        .option("url", url)
        .option("create", True)
        .option("kind", "queue")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(progress.numInputRows for progress in query.recentProgress)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--url", default="fairlead://localhost")
    parser.add_argument("--checkpoint", default="./large-trades")
    given = parser.parse_args()
    spark = spark_session("large-trades", given.master)
    print(f"looked at {run(spark, given.url, given.checkpoint)} trades")
    spark.stop()


if __name__ == "__main__":
    main()
