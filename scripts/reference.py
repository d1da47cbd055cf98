"""Writes the pages of docs/ that the code knows best: errors, configuration, metrics; `--check` only compares."""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from fairlead.cluster.configuration.types import BusSpec, ClusterConfig, ClusterSettings, GroupSpec, NodeConfig
from fairlead.cluster.parameters import Parameters
from fairlead.console.openapi import RIGHTS, described, document
from fairlead.console.operations import OPERATIONS
from fairlead.errors import CODES
from fairlead.observability.catalogue import everything
from fairlead.runtime.settings import SECTIONS, SETTINGS, Destination

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTICE = "<!-- Written by scripts/reference.py (`make docs`); change the source, not this page. -->"


def errors_page() -> str:
    rows = [
        f"| `{code}` | `{entry.error.__name__}` | {'yes' if entry.error.retryable else 'no'} "
        f"| {'closed' if entry.closes else 'stays'} | {entry.sentence} |"
        for code, entry in CODES.items()
    ]
    return "\n".join(
        [
            "# Error codes",
            "",
            NOTICE,
            "",
            "Every error has a stable code. On the wire it is the `code` header of an ERROR frame, in Python the",
            "`code` of an exception of `fairlead.errors`; the message beside it is for people and may change. Codes",
            "are never renamed. *Retry* says whether another try can help, *connection* what becomes of it.",
            "",
            "A code this list does not have, from a newer server, becomes a plain `FairleadError` that carries it.",
            "",
            "| code | exception | retry | connection | meaning |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def configuration_page() -> str:
    lines = [
        "# Configuration",
        "",
        NOTICE,
        "",
        "The server runs without any. What is set is taken from these places, the later winning over the earlier:",
        "",
        "1. the default below;",
        "2. a TOML file: `--config FILE`, else `$FAIRLEAD_CONFIG`, else `~/.config/fairlead/fairlead.toml`, if any;",
        "3. an environment variable: `FAIRLEAD_SERVER_MANAGERS=4` is `managers` of `[server]`; lists have commas;",
        "4. the command line, for the common ones.",
        "",
        "A key the server does not know is refused, with the nearest known one suggested. `fairlead config show`",
        "prints each value in force and where it came from; `fairlead config check` says whether the server would",
        "start with it.",
        "",
        "```toml",
        "[server]",
        'listen = ["127.0.0.1:7400", "unix:/run/fairlead/client.sock"]',
        "managers = 4",
        "",
        "[fairness]",
        "limit = 100",
        "resume_below = 10",
        "```",
        "",
    ]
    for section, struct in SECTIONS.items():
        lines += [f"## `[{section}]`", "", (struct.__doc__ or "").strip(), ""]
        lines += ["| key | default | meaning, and what moving it costs |", "|---|---|---|"]
        for setting in SETTINGS.values():
            if setting.section == section:
                lines.append(f"| `{setting.key}` | {shown(setting.default)} | {setting.description} |")
        lines.append("")
    lines += [
        "## `[destinations.NAME]`",
        "",
        (Destination.__doc__ or "").strip(),
        "A name with dots is put into quotes. What is set here wins over what an administrator set, at the next start.",
        "",
        "```toml",
        '[destinations."orders.eu"]',
        'kind = "queue"',
        "max_messages = 1000000",
        "delivery_limit = 5",
        "```",
        "",
        "| key | default | meaning |",
        "|---|---|---|",
        *destination_rows(),
        "",
        *cluster_part(),
    ]
    return "\n".join(lines)


def cluster_part() -> list[str]:
    """The three files of a node in a cluster."""
    parts = [
        "# In a cluster",
        "",
        "A node of a cluster has three files ([operating.md](operating.md#a-cluster)). A key in the wrong one is",
        "refused, with the name of the one it belongs in. `fairlead cluster init` and `fairlead node init` write them;",
        "`fairlead node check` judges them.",
        "",
        "| file | class | the same on all nodes | changed |",
        "|---|---|---|---|",
        "| `cluster.toml` | essential | byte by byte; a node with another one does not start | while no node runs |",
        "| `settings.toml` | acquirable | yes; a node that was away takes it from the others | online, with "
        "`fairlead cluster set` |",
        "| `node.toml` | this node's own | no | with a restart of the node |",
        "",
    ]
    for title, struct in (
        ("`cluster.toml`", ClusterConfig),
        ("`cluster.toml`: `[[buses]]`", BusSpec),
        ("`settings.toml`", ClusterSettings),
        ("`settings.toml`: `[[groups]]`", GroupSpec),
        ("`node.toml`", NodeConfig),
    ):
        sentence = (struct.__doc__ or "").strip().removeprefix(f"{title}: ")
        parts += [f"## {title}", "", sentence[0].upper() + sentence[1:], ""]
        parts += ["| key | default | meaning, and what moving it costs |", "|---|---|---|", *struct_rows(struct), ""]
    parts += [
        "Not allowed in a cluster, since they are said elsewhere: `messages.enabled` and `messages.site_id` in",
        "`settings.toml`; `server.data` and `security.users` in `node.toml`.",
        "",
    ]
    return parts


def struct_rows(struct: type[msgspec.Struct]) -> list[str]:
    hints = get_type_hints(struct, include_extras=True)
    rows = []
    for field in msgspec.structs.fields(struct):
        metas = [meta for meta in get_args(hints[field.name])[1:] if isinstance(meta, msgspec.Meta)]
        description = next((meta.description for meta in reversed(metas) if meta.description), "")
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if default is msgspec.NODEFAULT:
            text = "must be set"
        elif isinstance(default, msgspec.Struct):
            text = "its defaults"
        else:
            text = shown(msgspec.to_builtins(default))
        rows.append(f"| `{field.name}` | {text} | {description} |")
    return rows


def destination_rows() -> list[str]:
    """The parameters and the remarks beside them in the source."""
    remarks = {"kind": "`queue` or `topic`."}
    for line in Path(inspect.getfile(Parameters)).read_text(encoding="utf-8").splitlines():
        if found := re.match(r"    (\w+): .* = .*?  # (.*)", line):
            remarks[found[1]] = f"{found[2][0].upper()}{found[2][1:]}."
    defaults = Destination()
    return [
        f"| `{name}` | {shown(getattr(defaults, name))} | {remarks.get(name, '')} |"
        for name in sorted(Destination.__struct_fields__, key=lambda name: name != "kind")
    ]


def shown(value: Any) -> str:
    return "not set" if value is None else f"`{json.dumps(value)}`"


def metrics_page() -> str:
    rows = [
        f"| `{metric.shown}` | {metric.kind} | {', '.join(f'`{one}`' for one in metric.labels) or '–'} "
        f"| {metric.sentence} |"
        for metric in sorted(everything(), key=lambda one: one.shown)
    ]
    return "\n".join(
        [
            "# Metrics",
            "",
            NOTICE,
            "",
            "What a server tells at `/metrics` of its console and with `fairlead status --prometheus`;",
            "[observability.md](observability.md) says how to gather and read it. A *counter* only grows, until a",
            "restart sets it to zero; a *gauge* is so now; a *histogram* has the series `_bucket`, `_sum`, `_count`.",
            "Times are in seconds. Parts a server has not (links, streams, a directory, a cluster) have no lines.",
            "",
            "| metric | kind | labels | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def api_page() -> str:
    found = document("")
    rows = []
    for one in OPERATIONS:
        asked = ", ".join(f"`{entry['name']}`" for entry in described(one)["parameters"] if entry["in"] == "query")
        body = f"[{one.body.__name__}](#{one.body.__name__.lower()})" if one.body else ""
        answer = (
            one.answer if isinstance(one.answer, str) else f"[{one.answer.__name__}](#{one.answer.__name__.lower()})"
        )
        what = " ".join([one.text, RIGHTS[one.right] if one.right != "admin" else "", *one.needs]).strip()
        rows.append(f"| `{one.method} {one.path}` | {asked} | {body} | {answer} | {what} |")
    lines = [
        "# Operations of the admin API",
        "",
        NOTICE,
        "",
        "All that can be asked of the console, and what it answers; [api.md](api.md) has the rules of all requests.",
        "Where nothing is said the right `admin` on `_ADMIN` is needed, or on the destination if it is about one.",
        "",
        "| operation | query | body | answer | |",
        "|---|---|---|---|---|",
        *rows,
        "",
    ]
    for name, schema in sorted(found["components"]["schemas"].items()):
        lines += [f"## {name}", ""]
        if text := schema.get("description", ""):
            lines += [" ".join(text.split()), ""]
        lines += ["| field | type |", "|---|---|"]
        lines += [f"| `{field}` | {_type_of(kind)} |" for field, kind in schema.get("properties", {}).items()]
        lines.append("")
    return "\n".join(lines)


def _type_of(kind: dict[str, Any]) -> str:
    if "$ref" in kind:
        name = kind["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in kind:
        return " or ".join(_type_of(one) for one in kind["anyOf"])
    if "enum" in kind:
        return ", ".join(f"`{json.dumps(one)}`" for one in kind["enum"])
    if kind.get("type") == "array":
        return f"list of {_type_of(kind.get('items', {}))}"
    if kind.get("type") == "object":
        inner = kind.get("additionalProperties")
        return f"object of {_type_of(inner)}" if isinstance(inner, dict) and inner else "object"
    return str(kind.get("type", "anything"))


PAGES = {
    "errors.md": errors_page,
    "configuration.md": configuration_page,
    "metrics.md": metrics_page,
    "api-reference.md": api_page,
}


def stale() -> list[str]:
    """The pages that do not say what the code says."""
    return [
        name
        for name, page in PAGES.items()
        if not (DOCS / name).is_file() or (DOCS / name).read_text(encoding="utf-8") != page()
    ]


def main() -> int:
    if "--check" in sys.argv[1:]:
        for name in stale():
            print(f"docs/{name} is out of date: run `make docs`", file=sys.stderr)
        return bool(stale())
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
