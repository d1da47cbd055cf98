// Tables of things whose fields the server chooses: a column for each, numbers to the right, times as times.

import { h } from "./dom.js";
import { bytes, clock, count, span } from "./format.js";
import { Table } from "./table.js";

/** `last_seen_ms` → "Last seen" */
export function words(name) {
  const text = name
    .replace(/_(ms|ns|s|bytes)$/, "")
    .replaceAll(/[_-]/g, " ")
    .trim();
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A value as people read it, by the unit its name ends in. */
export function value(name, found) {
  if (found === null || found === undefined || found === "") return "–";
  if (typeof found === "boolean") return found ? "yes" : "no";
  if (typeof found === "number") {
    if (name.endsWith("_ms")) return found > 1e11 ? clock(found) : span(found / 1000);
    if (name.endsWith("_ns")) return found > 1e17 ? clock(found / 1e6) : span(found / 1e9);
    if (name.endsWith("_s")) return found > 1e8 ? clock(found * 1000) : span(found);
    if (name.endsWith("bytes") || name.startsWith("bytes")) return bytes(found);
    return Number.isInteger(found) ? count(found) : String(Number(found.toPrecision(4)));
  }
  if (Array.isArray(found))
    return found.map((one) => (typeof one === "object" ? JSON.stringify(one) : String(one))).join(", ") || "–";
  if (typeof found === "object")
    return (
      Object.entries(found)
        .map(([key, one]) => `${key} ${typeof one === "object" ? JSON.stringify(one) : one}`)
        .join(", ") || "–"
    );
  return String(found);
}

/** A table whose columns are what its rows have; it keeps how it is sorted. */
export function anyTable(label, first = ["name", "id"]) {
  const table = new Table([], { label, key: (row) => row.name ?? row.id ?? JSON.stringify(row) });
  return {
    view(rows, empty = null) {
      const names = [...new Set(rows.flatMap((row) => Object.keys(row)))].sort(
        (a, b) => (first.includes(b) ? 1 : 0) - (first.includes(a) ? 1 : 0),
      );
      table.columns = names.map((name) => ({
        key: name,
        title: words(name),
        num: rows.some((row) => typeof row[name] === "number"),
        class: first.includes(name) ? "name" : "long",
        cell: (row) => value(name, row[name]),
        value: (row) => (typeof row[name] === "object" && row[name] !== null ? JSON.stringify(row[name]) : row[name]),
      }));
      return table.view(rows, { empty });
    },
  };
}

/** Facts one below the other. */
export function factList(found) {
  return h(
    "dl.facts",
    null,
    Object.entries(found).flatMap(([name, one]) => [
      h("dt", { key: `t${name}` }, words(name)),
      h("dd", { key: `d${name}` }, value(name, one)),
    ]),
  );
}
