"""The files of the page: read once, named by their content, and nothing else of the disk.

The list is made when the console starts, so no name in a request is ever a path. Whoever has a file already is told
that it is still the same (ETag); everything is asked for again each time, since a live update may bring another page.
"""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path
from typing import Final, NamedTuple

from starlette.responses import Response

from fairlead.console.gatekeeping import Headers

FOLDER: Final = Path(__file__).parent.parent / "static"
FILE_BYTES_MAX: Final = 4 << 20
KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
}
PLACEHOLDER: Final = (
    b"<!doctype html><meta charset=utf-8><title>Fairlead</title><h1>Fairlead</h1>"
    b"<p>The page of the console is not installed; its interface is: <a href=/api/openapi.json>/api/openapi.json</a>.\n"
)


class File(NamedTuple):
    content: bytes
    kind: str
    tag: str


class Static:
    """All of them by the path under which they are asked for: `/` is index.html, `/static/…` the rest."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files: dict[str, File] = {}
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= FILE_BYTES_MAX:
                name = path.relative_to(folder).as_posix()
                self._files[f"/static/{name}"] = made(path.read_bytes(), path.suffix)
        self._files["/"] = self._files.get("/static/index.html") or made(PLACEHOLDER, ".html")
        if icon := self._files.get("/static/favicon.ico") or self._files.get("/static/icon.svg"):
            self._files["/favicon.ico"] = icon

    def answer(self, method: str, path: str, headers: Headers) -> Response | None:
        """None if there is no such file, or it is not asked for."""
        file = self._files.get(path)
        if file is None or method not in ("GET", "HEAD"):
            return None
        known = {"ETag": file.tag, "Cache-Control": "no-cache"}
        if file.tag in (tag.strip() for tag in headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=known)
        return Response(
            b"" if method == "HEAD" else file.content,
            headers={**known, "Content-Type": file.kind, "Content-Length": str(len(file.content))},
        )


def made(content: bytes, suffix: str) -> File:
    kind = KINDS.get(suffix) or mimetypes.types_map.get(suffix, "application/octet-stream")
    return File(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
