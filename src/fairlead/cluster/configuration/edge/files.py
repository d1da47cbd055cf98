"""A node's files on its disk: read and judged at the start, settings rewritten when they change.

`settings.toml` is replaced in one step and its predecessor kept as `settings.toml.previous`; a file that somebody
edited while the node ran is kept beside it as `settings.toml.edited-N` (CLU-190, CLU-192).
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead.cluster.configuration.checks import check_cluster, check_node, check_settings
from fairlead.cluster.configuration.distributor import ConfigNotes
from fairlead.cluster.configuration.documents import (
    canonical,
    essential_digest,
    parse_cluster,
    parse_node,
    parse_settings,
    settings_digest,
    to_toml,
)
from fairlead.cluster.configuration.types import ClusterConfig, ClusterSettings, NodeConfig
from fairlead.errors import ConfigError

NOTES: Final = "configuration.json"
PATHS: Final = "files.json"
SECRET_BYTES_MIN: Final = 16
COMMENT: Final = (
    "Acquirable settings of the cluster, the same on all nodes. Written by Fairlead: while a node runs, change them\n"
    "with `fairlead cluster set KEY VALUE`; while none runs, with the same and `--file FILE` on one of them."
)


class NodeFiles:
    """The three files of one node, read and found good."""

    def __init__(self, node: Path, cluster: Path | None = None, settings: Path | None = None) -> None:
        self.node_path = node
        self.cluster_path = cluster or node.parent / "cluster.toml"
        self.settings_path = settings or node.parent / "settings.toml"
        data = read_bytes(self.cluster_path)
        self.essential = essential_digest(data)
        self.cluster: ClusterConfig = parse_cluster(_text(self.cluster_path, data), str(self.cluster_path))
        self.settings: ClusterSettings = read_settings(self.settings_path)
        self.node: NodeConfig = parse_node(_text(node, read_bytes(node)), str(node))
        check_cluster(self.cluster)
        check_settings(self.settings)
        check_node(self.node, self.cluster, self.settings)
        self.node = self._absolute(self.node)
        self.secret = read_secret(self.node)
        self._known = settings_digest(canonical(self.settings))

    def _absolute(self, node: NodeConfig) -> NodeConfig:
        """Paths in node.toml are meant from where it is."""
        here = self.node_path.absolute().parent
        changes: dict[str, Any] = {"data": str(here / Path(node.data).expanduser())}
        if node.secret_file:
            changes["secret_file"] = str(here / Path(node.secret_file).expanduser())
        for key in ("tls_certificate", "tls_key", "tls_ca"):
            if file := getattr(node, key):
                changes[key] = str(here / Path(file).expanduser())
        if self.cluster.carrier == "local":
            changes["buses"] = {name: str(here / Path(path).expanduser()) for name, path in node.buses.items()}
        return msgspec.structs.replace(node, **changes)

    @property
    def data(self) -> Path:
        """The node's data directory."""
        return Path(self.node.data)

    def remember(self) -> None:
        """Leave a note in the data directory where these files are, for processes that only know that."""
        paths = [str(path.absolute()) for path in (self.node_path, self.cluster_path, self.settings_path)]
        write_file(self.data / PATHS, msgspec.json.encode(paths))

    @classmethod
    def recall(cls, data: Path) -> NodeFiles:
        """The files of the node that has this data directory, read anew."""
        try:
            node, cluster, settings = msgspec.json.decode((data / PATHS).read_bytes(), type=list[str])
        except (OSError, ValueError, msgspec.DecodeError):
            raise ConfigError(f"no node was ever started with the data directory {data}") from None
        return cls(Path(node), Path(cluster), Path(settings))

    def write_settings(self, settings: ClusterSettings) -> str:
        """Replace the file. The sentence says what was found edited by hand, if anything."""
        edited = self._set_aside()
        text = to_toml(settings, COMMENT)
        with suppress(OSError):
            write_file(_beside(self.settings_path, "previous"), self.settings_path.read_bytes())
        write_file(self.settings_path, text.encode())
        self.settings = settings
        self._known = settings_digest(canonical(settings))
        return edited

    def _set_aside(self) -> str:
        try:
            found = self.settings_path.read_bytes()
        except OSError:
            return ""
        try:
            digest = settings_digest(canonical(parse_settings(found.decode(), str(self.settings_path))))
        except (ConfigError, UnicodeDecodeError):
            digest = ""
        if digest == self._known:
            return ""
        number = 1
        while (aside := _beside(self.settings_path, f"edited-{number}")).exists():
            number += 1
        write_file(aside, found)
        return (
            f"{self.settings_path} was edited while the cluster ran; that copy is kept as {aside.name} and not in force"
        )

    def read_notes(self) -> ConfigNotes:
        """What this node remembers; nothing if it was never there, or is not readable any more."""
        try:
            notes = msgspec.json.decode((self.data / NOTES).read_bytes(), type=ConfigNotes)
        except (OSError, msgspec.DecodeError):
            return ConfigNotes()
        self._known = notes.applied or self._known  # a file that differs from it was edited while we were away
        return notes

    def write_notes(self, notes: ConfigNotes) -> None:
        write_file(self.data / NOTES, msgspec.json.encode(notes))


def read_settings(path: Path) -> ClusterSettings:
    return parse_settings(_text(path, read_bytes(path)), str(path))


def read_secret(node: NodeConfig) -> bytes | None:
    """The cluster's secret, or a sentence why it is none."""
    if not node.secret_file:
        return None
    path = Path(node.secret_file).expanduser()
    try:
        mode, secret = path.stat().st_mode, path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"cannot read the secret of the cluster in {path}: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"others on this host can open the secret of the cluster; run `chmod 600 {path}`")
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            f"the secret in {path} has fewer than {SECRET_BYTES_MIN} bytes; make one with `fairlead node secret FILE`"
        )
    return secret


def write_secret(path: Path) -> None:
    """A new secret, in a file nobody else can read; an existing one is not touched."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path} is there already; remove it first if all nodes are to get another secret") from None
    with open(fd, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32) + "\n")


def write_file(path: Path, data: bytes) -> None:
    """Whole and on stable storage, or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}; `fairlead node init --help` says how to make one") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def _text(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f"{path.name}.{ending}")
