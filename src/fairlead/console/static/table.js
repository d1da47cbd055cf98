// Tables that can be sorted, and what stands in their place when there is nothing in them.

import { h, redraw } from "./dom.js";

/**
 * Columns: {key, title, num, cell(row), value(row), hide (on phones), sort: false}. The table keeps by what it is sorted;
 * view(rows, {row(row) → properties, empty}) gives the node.
 */
export class Table {
  constructor(columns, { sort = null, descending = false, key = (row) => row.name, label = "" } = {}) {
    this.columns = columns;
    this.sort = sort;
    this.descending = descending;
    this.key = key;
    this.label = label;
  }

  by(column) {
    if (this.sort === column.key) this.descending = !this.descending;
    else {
      this.sort = column.key;
      this.descending = Boolean(column.num);
    }
    redraw();
  }

  sorted(rows) {
    const column = this.columns.find((one) => one.key === this.sort);
    if (!column) return rows;
    const value = column.value ?? ((row) => row[column.key]);
    const sign = this.descending ? -1 : 1;
    return [...rows].sort((a, b) => sign * compare(value(a), value(b)) || compare(this.key(a), this.key(b)));
  }

  view(rows, { row: properties = () => ({}), empty = null } = {}) {
    if (!rows.length && empty) return empty;
    return h(
      "div.scroll",
      { tabindex: "0", role: "region", "aria-label": this.label || "Table" },
      h(
        "table",
        { "aria-label": this.label || null },
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            this.columns.map((column) =>
              h(
                "th",
                {
                  class: classes(column),
                  scope: "col",
                  title: column.hint,
                  "aria-sort": this.sort === column.key ? (this.descending ? "descending" : "ascending") : null,
                },
                column.sort === false
                  ? column.title
                  : h("button", { type: "button", onclick: () => this.by(column) }, column.title),
              ),
            ),
          ),
        ),
        h(
          "tbody",
          null,
          this.sorted(rows).map((row) =>
            h(
              "tr",
              { key: String(this.key(row)), ...properties(row) },
              this.columns.map((column) => {
                const shown = column.cell ? column.cell(row) : row[column.key];
                return h("td", { class: `${classes(column)}${shown === "0" ? " zero" : ""}` }, shown);
              }),
            ),
          ),
        ),
      ),
    );
  }
}

function classes(column) {
  return [column.num ? "num" : "", column.hide ? "hide-phone" : "", column.class ?? ""].filter(Boolean).join(" ");
}

function compare(a, b) {
  if (a === null || a === undefined) return b === null || b === undefined ? 0 : -1;
  if (b === null || b === undefined) return 1;
  return typeof a === "number" && typeof b === "number"
    ? a - b
    : String(a).localeCompare(String(b), "en", { numeric: true });
}

/** What stands where nothing is: what that means, and what to do next. */
export function nothing(title, text, command = null) {
  return h(
    "div.empty",
    null,
    h("strong", null, title),
    text ? h("span", null, text) : null,
    command ? h("pre", null, command) : null,
  );
}

/** Not answered yet, or not at all. */
export function waiting(resource) {
  if (resource.fault) {
    return h(
      "div.card.fault-card",
      { role: "alert" },
      h("p.fault", null, resource.fault.message),
      h(
        "p.muted",
        null,
        resource.fault.status === 403
          ? "Ask an administrator for the right, or log in as somebody else."
          : "It is asked for again by itself.",
      ),
    );
  }
  return h("div.card.empty", { "aria-busy": "true" }, "Loading …");
}

/** A figure with its name. */
export function tile(label, value, unit = "", kind = "") {
  return h(
    "div.tile",
    { class: kind },
    h("div.label", null, label),
    h("div.value", null, value, unit ? h("small", null, unit) : null),
  );
}

/** A bar that fills up. */
export function meter(share, label) {
  const at = Math.max(0, Math.min(1, share || 0));
  return h("span.meter", {
    class: at > 0.9 ? "bad" : at > 0.7 ? "warn" : "",
    role: "img",
    "aria-label": `${label}: ${Math.round(at * 100)} %`,
    title: `${label}: ${Math.round(at * 100)} %`,
    style: { "--share": `${at * 100}%` },
  });
}

export function chip(text, kind = "") {
  return h("span.chip", { class: kind }, text);
}
