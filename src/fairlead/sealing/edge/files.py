"""The files of a keyring: read only if nobody else may read them, replaced whole, changed by one at a time.

On Windows who may read a file is not in its mode, and directories cannot be locked: there only the replacing is left.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from fairlead.errors import ConfigError
from fairlead.sealing import texts
from fairlead.sealing.keyring import Keyring
from fairlead.sealing.keys import KeyPair, SharedKey
from fairlead.sealing.pins import Pins

if sys.platform != "win32":
    import fcntl

BYTES_MAX: Final = 16 * 1024 * 1024


class Keys(NamedTuple):
    """What is in a key file."""

    pairs: tuple[KeyPair, ...] = ()
    shared: tuple[SharedKey, ...] = ()


def load(path: str | Path, *, pins: str | Path | None = None, first_use: bool = True) -> Keyring:
    path = Path(path)
    pins_path = Path(pins) if pins is not None else pins_beside(path)
    keys = read(path)
    return Keyring(keys.pairs, keys.shared, read_pins(pins_path), first_use=first_use, pins_path=pins_path)


def pins_beside(path: Path) -> Path:
    return path.with_name(path.name + ".pins")


def read(path: Path) -> Keys:
    text = _text(path, secret=True)
    if text is None:
        raise ConfigError(f"there is no key file {path}; make it with `fairlead key new {path} --app NAME`")
    pairs, shared = texts.read_keys(text, str(path))
    return Keys(tuple(pairs), tuple(shared))


def read_pins(path: Path) -> Pins:
    """Those of the file; none if there is no file yet."""
    text = _text(path, secret=False)
    return texts.read_pins(text, str(path)) if text is not None else Pins()


def update(path: Path, change: Callable[[Keys], Keys]) -> Keys:
    """Read, change and write with nobody else doing so meanwhile; a missing file counts as empty."""
    with _alone(path):
        keys = change(read(path) if path.exists() else Keys())
        _write(path, texts.write_keys(keys.pairs, keys.shared))
    return keys


def update_pins(path: Path, change: Callable[[Pins], Pins]) -> Pins:
    with _alone(path):
        before = read_pins(path)
        pins = change(before)
        if pins is not before:
            _write(path, texts.write_pins(pins))
    return pins


def _text(path: Path, *, secret: bool) -> str | None:
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            data = file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read the key file {path}: {error.strerror}") from None
    if sys.platform != "win32" and stat.S_IMODE(facts.st_mode) & (0o077 if secret else 0o022):
        who = "others can open" if secret else "others can change"
        raise ConfigError(f"{who} the key file {path}; run `chmod 600 {path}`")
    if len(data) > BYTES_MAX:
        raise ConfigError(f"{path} is too large for a key file")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a key file: it is not text") from None


def _write(path: Path, text: str) -> None:
    """Replace the file at once and durably; only its owner may read it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write the key file {path}: {error.strerror}") from None
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    if sys.platform != "win32":
        with _directory(path) as descriptor:
            os.fsync(descriptor)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"cannot write the key file {path}: {error.strerror}") from None
    if sys.platform == "win32":
        yield
    else:
        with _directory(path) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield


@contextmanager
def _directory(path: Path) -> Iterator[int]:
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
