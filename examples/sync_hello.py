"""Without an event loop: the synchronous face has the same names.

Run it as it stands against a server on this machine, or give it a URL.
"""

import sys

import fairlead.sync


def main(url: str) -> None:
    with fairlead.sync.connect(url, name="hello") as connection:
        with connection.subscribe("greetings.>") as greetings:
            connection.publish("greetings.world", "hello")
            connection.publish("greetings.moon", "and hello")
            for message in greetings:
                print(message.topic, message.body.decode())
                if message.topic == "greetings.moon":
                    break
        with connection.respond("square", lambda request: str(int(request.body) ** 2)):
            print("7 squared is", connection.request("square", b"7", timeout=5).body.decode())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "fairlead://127.0.0.1:7400")
