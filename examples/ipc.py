"""Two applications talk to each other directly, by name or by uid; nobody else sees any of it.

Run it as it stands against a server on this machine, or give it a URL.
"""

import asyncio
import sys

import fairlead


async def main(url: str) -> None:
    async with fairlead.connect(url, name="editor") as editor, fairlead.connect(url, name="speller") as speller:
        await speller.respond_direct(lambda request: b"ok" if request.body.isalpha() else b"misspelt")
        await editor.respond_direct(lambda request: b"the editor is at line 7")

        for word in ("hello", "he11o"):
            print(f"{word}:", (await editor.call(speller.address, word)).body.decode())
        print("and back:", (await speller.call(editor.uid, b"where are you?")).body.decode())

        await editor.send_to(speller.uid, "a new word: fairlead")
        message = await speller.inbox().next(timeout=5)
        print(f"speller was told {message.body.decode()!r} by {message.sender}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "fairlead://127.0.0.1:7400"))
