"""The description of the admin API for programs (OpenAPI 3.1), made from the table of operations and its structs."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from fairlead.console import shapes, shapes_time
from fairlead.console.operations import OPERATIONS, Operation

REF: Final = "#/components/schemas/{name}"
PROBLEM: Final = "application/problem+json"
RIGHTS: Final = {
    "anybody": "For everybody.",
    "user": "For everybody who is logged in.",
    "admin": "Needs the right `admin` on `_ADMIN`.",
    "see": "Needs any right to the destination, or `admin`.",
    "send": "Needs the right `send` to the destination.",
    "browse": "Needs the right `browse` to the destination, or `admin`.",
    "create": "Needs the right `create` to the destination, or `admin`.",
}
VARIABLES: Final[dict[str, dict[str, Any]]] = {
    "name": {"type": "string", "minLength": 1, "maxLength": 255},
    "order": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    "id": {"type": "string", "pattern": "^[0-9]{1,20}$"},
}


def document(version: str) -> dict[str, Any]:
    """The whole of it."""
    kinds = [one.body for one in OPERATIONS if one.body] + [one.answer for one in OPERATIONS if _is_struct(one.answer)]
    unique = list(dict.fromkeys([*kinds, shapes.Problem, shapes_time.Event, shapes_time.Sample]))
    _, components = msgspec.json.schema_components(unique, ref_template=REF)
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = described(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Fairlead admin API",
            "version": version,
            "description": "See docs/api.md. Errors are problems (RFC 9457) with the codes of docs/errors.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "cookie": {"type": "apiKey", "in": "cookie", "name": "fairlead-console"},
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
                "csrf": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-Fairlead-CSRF",
                    "description": "`csrf` of GET /api/v1/me.",
                },
            },
        },
        "security": [{}, {"cookie": []}, {"basic": []}, {"bearer": []}],
    }


def described(one: Operation) -> dict[str, Any]:
    """One operation."""
    found: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.text,
        "description": " ".join([RIGHTS[one.right], *(f"{text.capitalize()}." for text in one.needs)]),
        "parameters": [*_variables(one), *_query(one)],
        "responses": _responses(one),
    }
    if one.changes:
        found["description"] += " With a cookie, or without users, X-Fairlead-CSRF has to be there."
        found["security"] = [{}, {"cookie": [], "csrf": []}, {"basic": []}, {"bearer": []}]
    if one.body is not None:
        content = {"application/json": {"schema": {"$ref": REF.format(name=one.body.__name__)}}}
        found["requestBody"] = {"required": bool(_required(one.body)), "content": content}
    return found


def _responses(one: Operation) -> dict[str, Any]:
    content: dict[str, Any]
    if isinstance(one.answer, str):
        content = {one.answer: {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": {"$ref": REF.format(name=one.answer.__name__)}}}
    problem = {"description": "A problem.", "content": {PROBLEM: {"schema": {"$ref": REF.format(name="Problem")}}}}
    found: dict[str, Any] = {"200": {"description": "Done.", "content": content}, "default": problem}
    if one.name == "ready":
        found["503"] = {"description": "Not ready.", "content": content}
    return found


def _variables(one: Operation) -> list[dict[str, Any]]:
    return [{"name": name, "in": "path", "required": True, "schema": VARIABLES[name]} for name in one.variables]


def _query(one: Operation) -> list[dict[str, Any]]:
    _, parts = msgspec.json.schema_components([one.query], ref_template=REF)
    schema = parts[one.query.__name__]
    found = []
    for name, kind in schema.get("properties", {}).items():
        text = kind.pop("description", "")
        entry: dict[str, Any] = {"name": name, "in": "query", "required": name in schema.get("required", [])}
        if text:
            entry["description"] = text
        found.append({**entry, "schema": _without_null(kind)})
    return found


def _without_null(kind: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: whatever is not known is left out."""
    if "anyOf" not in kind:
        return kind
    rest = [one for one in kind["anyOf"] if one != {"type": "null"}]
    default = {"default": kind["default"]} if kind.get("default") is not None else {}
    return {**(rest[0] if len(rest) == 1 else {"anyOf": rest}), **default}


def _required(kind: type[Struct]) -> list[str]:
    return [one.name for one in msgspec.structs.fields(kind) if one.required]


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type)
