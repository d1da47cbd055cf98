"""What went wrong, for whoever asked over HTTP: which status an error of ours is, and the problem that tells of it.

Every error has its stable code (docs/errors.md); a code that is not listed here is a refusal, and the caller's to mend.
"""

from __future__ import annotations

from typing import Final

from fairlead.console.shapes import Problem
from fairlead.errors import CODES, FairleadError, Unavailable

STATUS: Final[dict[str, int]] = {
    "bad-request": 400,
    "bad-credentials": 401,
    "not-allowed": 403,
    "no-destination": 404,
    "destination-deleted": 404,
    "unknown-stream": 404,
    "unknown-broker": 404,
    "unknown-cluster": 404,
    "duplicate-subscription": 409,
    "name-taken": 409,
    "wrong-kind": 409,
    "blocked": 409,
    "stale": 409,
    "offset-gone": 410,
    "body-too-large": 413,
    "header-too-large": 413,
    "frame-too-large": 413,
    "bad-name": 422,
    "bad-topic": 422,
    "bad-pattern": 422,
    "bad-parameter": 422,
    "bad-selector": 422,
    "too-many": 429,
    "timeout": 504,
    "store-full": 507,
}
TITLES: Final[dict[int, str]] = {
    400: "Bad request",
    401: "Log in first",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    408: "Too slow",
    409: "Not in this state",
    410: "Gone",
    413: "Too long",
    415: "Wrong kind of content",
    421: "Another host was meant",
    422: "A value it cannot have",
    429: "Too often",
    500: "A fault of the server",
    503: "Not there at the moment",
    504: "No answer in time",
    507: "No room",
}


class Denied(FairleadError):
    """A request that HTTP itself has a status for, and our codes have not."""

    def __init__(self, status: int, text: str, *, code: str = "bad-request", retry_s: float = 0.0) -> None:
        super().__init__(text, code=code)
        self.status = status
        self.retry_s = retry_s


def status_of(error: FairleadError) -> int:
    if isinstance(error, Denied):
        return error.status
    found = STATUS.get(error.code)
    if found is not None:
        return found
    if error.code == "internal":
        return 500
    return 503 if isinstance(error, Unavailable) else 409


def problem_of(error: FairleadError) -> Problem:
    status = status_of(error)
    known = CODES.get(error.code)
    return Problem(
        type="about:blank",
        title=TITLES.get(status, "It did not work"),
        status=status,
        detail=error.text or (known.sentence if known else ""),
        code=error.code,
    )
