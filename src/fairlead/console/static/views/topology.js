// The server at a glance: what is wrong, what flows, which processes do it, and what was replaced.

import { ask, tell } from "../dialogs.js";
import { h, redraw } from "../dom.js";
import { Changes } from "../changes.js";
import { clusterDrawing } from "../cluster.js";
import { clock, count, many, millis, rate, short, span } from "../format.js";
import { Resource, live, post } from "../net.js";
import { Table, chip, tile, waiting } from "../table.js";
import { drawing } from "../topology.js";

const changes = new Changes(); // goes on while other views are looked at
live.addEventListener("overview", (event) => changes.onOverview(event.detail, Date.now()));

const OUTCOME = { done: "ok", "took over": "warn", moved: "ok", drained: "ok", failed: "bad", "rolled back": "bad" };
const updates = new Table(
  [
    { key: "component", title: "Component", sort: false },
    { key: "when_ms", title: "When", sort: false, cell: (row) => clock(row.when_ms) },
    { key: "outcome", title: "Outcome", sort: false, cell: (row) => chip(row.outcome, OUTCOME[row.outcome] ?? "") },
    { key: "pause_ms", title: "Pause", num: true, sort: false, cell: (row) => millis(row.pause_ms) },
    {
      key: "version",
      title: "Version",
      sort: false,
      hide: true,
      cell: (row) => (row.from_version === row.to_version ? row.to_version : `${row.from_version} → ${row.to_version}`),
    },
    { key: "reason", title: "Reason", sort: false, hide: true, class: "wide", cell: (row) => row.reason },
  ],
  { key: (row) => `${row.component}${row.when_ms}`, label: "Updates" },
);

class Topology {
  constructor() {
    this.title = "Topology";
    this.width = 900;
    this.picked = null;
    this.busy = "";
    this.overview = new Resource(() => "overview", { every: 3600 }); // the first one; then the stream
    this.cluster = new Resource(() => "cluster", { every: 2 });
    this.resources = [this.overview, this.cluster];
  }

  mounted(node) {
    this.watcher = new ResizeObserver(() => {
      const width = Math.floor(node.clientWidth) - 32;
      if (width > 0 && width !== this.width) {
        this.width = width;
        redraw();
      }
    });
    this.watcher.observe(node);
  }

  leave() {
    this.watcher?.disconnect();
  }

  async update(process) {
    const standby = process.role === "router" || process.role === "dispatcher";
    const sure = await ask({
      title: `Replace the ${process.updatable}?`,
      confirm: "Replace it",
      text: standby
        ? `A successor of process ${process.pid} loads first and then takes over; connections stay, and the pause is measured. If the successor does not work, the old one goes on.`
        : process.role === "manager"
          ? "Each connection manager is replaced in turn. Its clients are asked to move to another one first and lose nothing by it."
          : `Process ${process.pid} is stopped and started again. Clients stay connected and wait meanwhile.`,
    });
    if (!sure) return;
    this.busy = process.updatable;
    redraw();
    try {
      const { updates: done } = await post("update", { component: process.updatable });
      tell(
        done.map((one) => `${one.component}: ${one.outcome}, pause ${millis(one.pause_ms)}.`).join(" ") ||
          "It was replaced.",
      );
    } catch (fault) {
      tell(fault.message, "bad");
    }
    this.busy = "";
    redraw();
  }

  detail(overview) {
    const found = overview.processes.filter((one) => one.name === this.picked);
    if (!found.length) return null;
    const main = found.find((one) => one.state === "active") ?? found[0];
    return h(
      "section.card",
      { "aria-label": this.picked },
      h(
        "div.head",
        null,
        h("h2", null, this.picked),
        h("span.grow"),
        main.updatable
          ? h(
              "button",
              { type: "button", disabled: Boolean(this.busy), onclick: () => this.update(main) },
              this.busy === main.updatable ? "Replacing …" : "Replace it live …",
            )
          : null,
        h(
          "button",
          {
            type: "button",
            onclick: () => {
              this.picked = null;
              redraw();
            },
          },
          "Close",
        ),
      ),
      h(
        "div.scroll",
        null,
        h(
          "table",
          null,
          h(
            "thead",
            null,
            h(
              "tr",
              null,
              ["Process", "State", "Version", "Generation", "Started", "Up"].map((text, i) =>
                h("th", { class: [0, 3, 5].includes(i) ? "num" : "" }, text),
              ),
            ),
          ),
          h(
            "tbody",
            null,
            found.map((one) =>
              h(
                "tr",
                { key: String(one.pid) },
                h("td.num", null, one.pid),
                h("td", null, chip(one.state, one.state === "active" || one.state === "serving" ? "ok" : "")),
                h("td", null, one.version),
                h("td.num", null, one.generation),
                h("td", null, clock(one.started_ms)),
                h("td.num", null, span(one.uptime_s)),
              ),
            ),
          ),
        ),
      ),
    );
  }

  view() {
    const overview = live.data.overview ?? this.overview.data;
    if (!overview) return [h("div.head", null, h("h1", null, "Topology")), waiting(this.overview)];
    if (this.cluster.data && this.cluster.data !== this.seen) {
      this.seen = this.cluster.data;
      changes.onCluster(this.seen, Date.now());
    }
    const { totals, server, latency } = overview;
    const faults = totals.accounting_faults + totals.safety_tick_finds;
    const cluster = this.cluster.data;
    const alarms = overview.alarms.length + (cluster?.warnings.length ?? 0);
    return [
      h(
        "div.head",
        null,
        h("h1", null, "Topology"),
        chip(alarms ? many(alarms, "alarm") : "all well", overview.health === "error" ? "bad" : alarms ? "warn" : "ok"),
        h("span.grow"),
        h("span.sub", null, `${server.listen.join(", ")} · up ${span(server.uptime_s)}`),
      ),
      overview.alarms.length
        ? h(
            "ul.alarms.card",
            { "aria-label": "Alarms" },
            overview.alarms.map((one) =>
              h(
                "li",
                { key: one.code + one.about },
                chip(one.level, one.level === "error" ? "bad" : "warn"),
                h("span", null, one.text),
              ),
            ),
          )
        : null,
      h(
        "div.tiles",
        null,
        tile("In", rate(totals.messages_in), "/s"),
        tile("Out", rate(totals.messages_out), "/s"),
        tile("Stored", rate(totals.stored), "/s"),
        tile("Delivered", rate(totals.delivered), "/s"),
        tile("Waiting", short(overview.messages.depth)),
        tile("Connections", count(totals.connections)),
        tile(
          "Round trip p99",
          latency ? millis(latency.p99_ms).split(" ")[0] : "–",
          latency ? millis(latency.p99_ms).split(" ")[1] : "",
        ),
        tile("Faults", count(faults), "", faults ? "bad" : ""),
      ),
      h(
        "div.card.drawing",
        { onmount: (node) => this.mounted(node) },
        drawing(overview, changes, this.width, this.picked, (box) => {
          if (box.role === "clients") location.hash = "#/connections";
          this.picked = this.picked === box.name ? null : box.name;
          redraw();
        }),
      ),
      this.detail(overview),
      cluster?.clustered
        ? h(
            "section.card.drawing",
            null,
            h("h2", null, "Cluster"),
            cluster.warnings.map((text) => h("p.note", { key: text }, chip("warning", "warn"), " ", text)),
            clusterDrawing(cluster, changes, this.width),
          )
        : null,
      h(
        "div.columns",
        null,
        h(
          "section.card",
          null,
          h("h2", null, "What just changed"),
          h(
            "ul.changes",
            { "aria-live": "polite" },
            changes.lines
              .slice(0, 8)
              .map((one) =>
                h(
                  "li",
                  { key: `${one.ms}${one.text}` },
                  h("time", null, clock(one.ms)),
                  h("i.dot-state", { class: one.level }),
                  h("span", null, one.text),
                ),
              ),
          ),
          changes.lines.length
            ? null
            : h(
                "p.muted",
                null,
                "Nothing since you opened this page. Processes that are replaced show here and fade in the drawing.",
              ),
        ),
        h(
          "section.card.flush",
          null,
          h("h2", null, "Updates"),
          updates.view(overview.updates.slice(0, 8), {
            empty: h(
              "p.muted.pad",
              null,
              "None so far. ",
              h("code", null, "fairlead update router"),
              " replaces the router under load.",
            ),
          }),
        ),
      ),
      overview.notes.map((text) => h("p.muted", { key: text }, text)),
    ];
  }
}

export const topology = () => new Topology();
