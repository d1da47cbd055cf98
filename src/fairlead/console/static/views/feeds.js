// Streams with two adapters each: which one is active, how far both have come, and what was decided.

import { h } from "../dom.js";
import { clock, count, many } from "../format.js";
import { Resource } from "../net.js";
import { Table, chip, nothing, waiting } from "../table.js";
import { value } from "../words.js";

const adapters = new Table(
  [
    { key: "name", title: "Adapter", class: "name" },
    { key: "role", title: "Role", cell: (row) => chip(row.role, row.role === "active" ? "accent" : "") },
    {
      key: "alive",
      title: "State",
      sort: false,
      cell: (row) => [
        row.alive ? chip("alive", "ok") : chip("dead", "bad"),
        " ",
        row.source_alive ? null : chip("source silent", "warn"),
        " ",
        row.synchronised ? null : chip("catching up", "warn"),
      ],
    },
    { key: "last", title: "Newest message", num: true, cell: (row) => count(row.last) },
    { key: "lag", title: "Behind", num: true, cell: (row) => count(row.lag) },
    {
      key: "positions",
      title: "Source positions",
      sort: false,
      hide: true,
      class: "long",
      cell: (row) => position(row.positions),
    },
    { key: "address", title: "Address", hide: true },
  ],
  { sort: "role", label: "Adapters" },
);

/** By source stream the newest source sequence number; what follows it tells parts of one message apart. */
function position(positions) {
  return (
    Object.entries(positions)
      .map(([stream, at]) => `${stream} ${Array.isArray(at) ? count(at[0]) : value("at", at)}`)
      .join(", ") || "–"
  );
}

class Feeds {
  constructor() {
    this.title = "Feeds";
    this.all = new Resource(() => "feeds", { every: 2 });
    this.resources = [this.all];
  }

  view() {
    const data = this.all.data;
    const head = h(
      "div.head",
      null,
      h("h1", null, "Feeds"),
      data?.serving ? h("span.sub", null, many(data.feeds.length, "stream")) : null,
    );
    if (!data) return [head, waiting(this.all)];
    if (!data.feeds.length) {
      return [
        head,
        h(
          "div.card",
          null,
          data.serving
            ? nothing(
                "No streams yet.",
                "Start two adapters of a source; each says which stream it makes:",
                "fairlead feed run --help",
              )
            : nothing(
                "This server does not look after streams.",
                data.note || "Let it be their administration:",
                "fairlead serve --set streams.serve=true",
              ),
        ),
      ];
    }
    return [
      head,
      data.note ? h("p.note", null, data.note) : null,
      data.feeds.map((feed) =>
        h(
          "section.card.flush",
          { key: feed.name },
          h(
            "div.head.pad",
            null,
            h("h2", null, feed.name),
            feed.active ? chip(`active: ${feed.active}`, "accent") : chip("no active adapter", "bad"),
            feed.switching_to ? chip(`switching to ${feed.switching_to}`, "warn") : null,
            feed.settling ? chip("settling", "warn") : null,
            h("span.grow"),
            h(
              "span.sub",
              null,
              `epoch ${feed.epoch} · ${many(feed.failovers, "failover")} · ${many(feed.switches, "switch", "switches")} · ${many(feed.gaps, "gap")} · ${many(feed.clients_total, "client")}`,
            ),
          ),
          adapters.view(feed.adapters),
          feed.decisions.length
            ? h(
                "ul.changes.pad",
                { "aria-label": "Decisions" },
                feed.decisions
                  .slice(-5)
                  .reverse()
                  .map((one, i) => h("li", { key: String(i) }, h("span", null, decision(one)))),
              )
            : null,
        ),
      ),
    ];
  }
}

function decision(one) {
  if (typeof one !== "object" || one === null) return String(one);
  const when = one.when_ms ?? one.ms ?? (one.when_ns ? one.when_ns / 1e6 : 0);
  const rest = Object.entries(one)
    .filter(([name]) => !/^(when_|ms$)/.test(name))
    .map(([name, found]) => `${name} ${value(name, found)}`)
    .join(", ");
  return when ? `${clock(when)}: ${rest}` : rest;
}

export const feeds = () => new Feeds();
