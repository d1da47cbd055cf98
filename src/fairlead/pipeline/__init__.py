"""The data pipeline: messages by the million on Apache Spark. Needs the `spark` extra."""
