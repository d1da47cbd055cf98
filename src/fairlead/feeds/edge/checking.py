"""What of a `feed.toml` can only be judged by looking at files, sources and converters."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from fairlead.errors import ConfigError
from fairlead.feeds.settings import FeedSettings, check

__all__ = ["check_all", "need_arrow", "password_of"]


class Login(Protocol):
    """A section that has a user."""

    @property
    def password(self) -> str: ...
    @property
    def password_file(self) -> str: ...


def check_all(settings: FeedSettings) -> None:
    """ConfigError for whatever would keep an adapter from starting."""
    check(settings)
    listen = settings.listen
    files = {
        "[listen] tls_certificate": listen.tls_certificate,
        "[listen] tls_key": listen.tls_key,
        "[listen] tls_ca": listen.tls_ca,
        "[administration] tls_ca": settings.administration.tls_ca,
        "[output] tls_ca": settings.output.tls_ca,
    }
    for what, file in files.items():
        if file and not Path(file).expanduser().is_file():
            raise ConfigError(f"{what}: there is no file {file}")
    if listen.tls_certificate:
        from fairlead.broker.edge.tls import make_context

        make_context(listen.tls_certificate, listen.tls_key)
    password_of(settings.administration, "administration")
    password_of(settings.output, "output")
    need_arrow()
    from fairlead.feeds.edge.sources import check_sources
    from fairlead.feeds.making import maker

    check_sources(list(settings.source))
    convert = settings.convert
    maker(convert.converter, convert.options, convert.keys if settings.feed.snapshots else ())


def password_of(login: Login, section: str) -> str:
    """The password of a section, from its file if it has one."""
    if not login.password_file:
        return login.password
    file = Path(login.password_file).expanduser()
    try:
        mode, text = file.stat().st_mode, file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"[{section}] password_file: cannot read {file}: {error}") from None
    if mode & 0o077:
        raise ConfigError(f"[{section}] password_file: others on this host can open it; run `chmod 600 {file}`")
    return text.strip()


def need_arrow() -> None:
    """ConfigError where the libraries of converters are missing."""
    try:
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"Feed adapters need Arrow: pip install 'fairlead[feeds]' ({error}).") from None
