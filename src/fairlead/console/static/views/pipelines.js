// Programs that read and write by the million: how far they are behind, and their last batches.

import { h } from "../dom.js";
import { bytes, clock, count, rate, span } from "../format.js";
import { toDestination } from "../links.js";
import { Resource } from "../net.js";
import { Table, chip, nothing, waiting } from "../table.js";

const to = (name) => (name ? h("a", { href: toDestination(name) }, name) : "–");
const STATE = {
  running: "ok",
  waiting: "ok",
  starting: "warn",
  stopping: "warn",
  done: "",
  failed: "bad",
  dead: "bad",
};
const jobs = new Table(
  [
    {
      key: "name",
      title: "Pipeline",
      class: "name",
      value: (row) => row.name,
      cell: (row) => [row.name, " ", h("span.sub", null, row.job)],
    },
    { key: "state", title: "State", cell: (row) => chip(row.state, STATE[row.state] ?? "") },
    { key: "destination", title: "Reads", hide: true, cell: (row) => to(row.destination) },
    { key: "lag", title: "Behind", num: true, cell: (row) => count(row.lag) },
    { key: "rate", title: "Rows /s", num: true, cell: (row) => rate(row.rate) },
    { key: "rows", title: "Rows", num: true, cell: (row) => count(row.rows) },
    { key: "last_batch", title: "Last batch", num: true, cell: (row) => count(row.last_batch) },
    {
      key: "updated_ms",
      title: "Heard",
      num: true,
      hide: true,
      cell: (row) => `${span((Date.now() - row.updated_ms) / 1000)} ago`,
    },
  ],
  { sort: "name", key: (row) => row.name + row.pid, label: "Pipelines" },
);
const cursors = new Table(
  [
    { key: "name", title: "Reader", class: "name" },
    { key: "destination", title: "Reads", cell: (row) => to(row.destination) },
    { key: "at", title: "Committed up to", num: true, cell: (row) => count(row.at) },
    { key: "reserved", title: "Given up to", num: true, hide: true, cell: (row) => count(row.reserved) },
    { key: "lag", title: "Behind", num: true, cell: (row) => count(row.lag) },
    { key: "lag_bytes", title: "Size", num: true, hide: true, cell: (row) => bytes(row.lag_bytes) },
    { key: "used_ms", title: "Last used", num: true, cell: (row) => clock(row.used_ms) },
  ],
  { sort: "lag", descending: true, key: (row) => row.destination + row.name, label: "Readers" },
);
const sinks = new Table(
  [
    { key: "query", title: "Query", class: "name" },
    { key: "batch", title: "Last batch", num: true, cell: (row) => count(row.batch) },
    { key: "messages", title: "Messages", num: true, cell: (row) => count(row.messages) },
    { key: "user", title: "User", hide: true, cell: (row) => row.user || "anonymous" },
    { key: "published_ms", title: "Published", num: true, cell: (row) => clock(row.published_ms) },
  ],
  { sort: "published_ms", descending: true, key: (row) => row.query, label: "Last batches" },
);
const stages = new Table(
  [
    { key: "query", title: "Query", class: "name" },
    { key: "batch", title: "Batch", num: true },
    { key: "stage", title: "Stage", hide: true },
    { key: "messages", title: "Messages", num: true, cell: (row) => count(row.messages) },
    { key: "bytes", title: "Size", num: true, cell: (row) => bytes(row.bytes) },
    { key: "active_ms", title: "Last active", num: true, cell: (row) => clock(row.active_ms) },
  ],
  { key: (row) => `${row.query}${row.batch}${row.stage}`, label: "Staged" },
);

class PipelinesView {
  constructor() {
    this.title = "Pipelines";
    this.all = new Resource(() => "pipelines", { every: 3 });
    this.resources = [this.all];
  }

  view() {
    const data = this.all.data;
    const head = h("div.head", null, h("h1", null, "Pipelines"));
    if (!data) return [head, waiting(this.all)];
    if (!data.jobs.length && !data.cursors.length && !data.sinks.length && !data.stages.length) {
      return [
        head,
        h(
          "div.card",
          null,
          nothing(
            "No pipelines have read or written here.",
            "Archive a queue to files, and see its lag and its batches here:",
            "fairlead pipeline --help",
          ),
        ),
      ];
    }
    const part = (title, table, rows) =>
      rows.length ? h("section.card.flush", { key: title }, h("h2", null, title), table.view(rows)) : null;
    return [
      head,
      data.complete ? null : h("p.muted", null, "There are more than are shown here."),
      part("Pipelines on this host", jobs, data.jobs),
      part("Readers and how far behind they are", cursors, data.cursors),
      part("Last batches written", sinks, data.sinks),
      part("Staged, not yet published", stages, data.stages),
    ];
  }
}

export const pipelines = () => new PipelinesView();
