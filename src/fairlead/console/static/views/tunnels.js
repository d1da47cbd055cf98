// Clients that come through HTTP, and the two processes that carry them.

import { h } from "../dom.js";
import { bytes, count, millis, span } from "../format.js";
import { Resource } from "../net.js";
import { anyTable } from "../words.js";
import { Table, chip, nothing, tile, waiting } from "../table.js";

class Tunnels {
  constructor() {
    this.title = "Tunnels";
    this.all = new Resource(() => "tunnels", { every: 3 });
    this.resources = [this.all];
    this.table = new Table(
      [
        { key: "connection_id", title: "Tunnel", cell: (row) => String(row.connection_id) },
        {
          key: "state",
          title: "State",
          cell: (row) => [chip(row.state, row.state === "open" ? "ok" : "warn"), row.reason ? ` ${row.reason}` : ""],
        },
        { key: "received", title: "Packets in", num: true, cell: (row) => count(row.received) },
        { key: "acknowledged", title: "Packets out", num: true, cell: (row) => count(row.acknowledged) },
        { key: "unacknowledged", title: "On the way", num: true, hide: true, cell: (row) => count(row.unacknowledged) },
        { key: "waiting_bytes", title: "Waiting", num: true, hide: true, cell: (row) => bytes(row.waiting_bytes) },
        { key: "resends", title: "Sent again", num: true, hide: true, cell: (row) => count(row.resends) },
        { key: "rtt_s", title: "Round trip", num: true, cell: (row) => (row.rtt_s ? millis(row.rtt_s * 1000) : "–") },
        { key: "silent_s", title: "Silent for", num: true, hide: true, cell: (row) => span(row.silent_s) },
        { key: "age_s", title: "Since", num: true, cell: (row) => span(row.age_s) },
      ],
      { sort: "age_s", key: (row) => row.connection_id, label: "Tunnels" },
    );
    this.links = anyTable("Links of brokers");
  }

  view() {
    const data = this.all.data;
    const head = h(
      "div.head",
      null,
      h("h1", null, "Tunnels"),
      data ? chip(data.enabled ? "open" : "switched off", data.enabled ? "ok" : "") : null,
    );
    if (!data) return [head, waiting(this.all)];
    return [
      head,
      h(
        "div.tiles",
        null,
        tile("Tunnels", count(data.broker.tunnels ?? data.tunnels.length)),
        tile("HTTP connections", count(data.gateway.connections ?? 0)),
        tile("Passed on", count(data.passed_on)),
        tile("Turned away", count(data.turned_away), "", data.turned_away ? "bad" : ""),
        tile("Gateway", data.gateway.state ?? "–"),
        tile("Broker", data.broker.state ?? "–"),
      ),
      data.note ? h("p.note", null, data.note) : null,
      h(
        "div.card.flush",
        null,
        this.table.view(data.tunnels, {
          empty: nothing(
            "No tunnels.",
            "Behind a firewall or proxy, connect through HTTP:",
            "fairlead sub 'demo.>' --server http://127.0.0.1:7400",
          ),
        }),
      ),
      data.links.length
        ? h("section.card.flush", null, h("h2", null, "Links of brokers"), this.links.view(data.links))
        : null,
    ];
  }
}

export const tunnels = () => new Tunnels();
