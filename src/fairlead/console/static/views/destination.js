// One queue or topic: its figures over time, what is in it, who takes from it, and what may be done to it.

import { Acts } from "../acts.js";
import { Browsing } from "../browsing.js";
import { Chart } from "../chart.js";
import { h, redraw } from "../dom.js";
import { bytes, count, rate, short, span } from "../format.js";
import { pick, since } from "../history.js";
import { Resource, path, session } from "../net.js";
import { Table, chip, nothing, tile, waiting } from "../table.js";
import { flags } from "./destinations.js";

const TABS = [
  ["messages", "Messages"],
  ["consumers", "Consumers"],
  ["parameters", "Settings"],
];

class Destination {
  constructor(name, tab = "messages") {
    this.name = name;
    this.title = name;
    this.tab = TABS.some(([key]) => key === tab) ? tab : "messages";
    this.depthChart = new Chart({ height: 150 });
    this.rateChart = new Chart({ height: 150 });
    this.detail = new Resource(() => path("destinations", name), { every: 2 });
    this.history = new Resource(
      () => path("history", { series: `depth/${name},in/${name},out/${name}`, since_ms: since(900), step_s: 5 }),
      { every: 5 },
    );
    this.browsing = new Browsing(name);
    this.acts = new Acts(name, this.browsing, () => Promise.all([this.detail.load(), this.browsing.refresh()]));
    this.resources = [this.detail, this.browsing.page];
    if (session.me.admin) this.resources.push(this.history); // the past of the server is for administrators
  }

  charts() {
    const found = pick(this.history.data);
    const frame = { times: found.times, from: found.from, to: found.to, empty: "Nothing measured yet." };
    return h(
      "div.columns",
      null,
      h(
        "div.card",
        null,
        this.depthChart.view({
          ...frame,
          title: "Waiting",
          note: "last 15 minutes",
          format: short,
          series: [{ name: "waiting", values: found.of(`depth/${this.name}`) }],
        }),
      ),
      h(
        "div.card",
        null,
        this.rateChart.view({
          ...frame,
          title: "Messages per second",
          note: "last 15 minutes",
          format: rate,
          series: [
            { name: "in", values: found.of(`in/${this.name}`) },
            { name: "out", values: found.of(`out/${this.name}`), colour: 3 },
          ],
        }),
      ),
    );
  }

  consumers(found) {
    const consumers = new Table(
      [
        { key: "user", title: "User", cell: (row) => row.user || "anonymous" },
        { key: "session", title: "Session", cell: (row) => h("span.mono", null, row.session.slice(0, 16)) },
        { key: "held", title: "Held", num: true, cell: (row) => count(row.held) },
        { key: "credit_messages", title: "Credit", num: true, cell: (row) => count(row.credit_messages) },
        { key: "selector", title: "Selector", cell: (row) => h("span.mono", null, row.selector || "–") },
        {
          key: "state",
          title: "State",
          sort: false,
          cell: (row) => [
            row.browse ? chip("browses") : null,
            row.exclusive ? chip("exclusive", "accent") : null,
            row.paused ? chip("paused", "warn") : null,
            row.stalled ? chip("stalled", "warn") : null,
          ],
        },
      ],
      { key: (row) => row.session + row.selector + row.held, label: "Consumers" },
    );
    const subscriptions = new Table(
      [
        { key: "name", title: "Subscription", class: "name" },
        { key: "client", title: "Client" },
        { key: "pattern", title: "Pattern" },
        { key: "depth", title: "Behind", num: true, cell: (row) => count(row.depth) },
        { key: "selector", title: "Selector", cell: (row) => row.selector || "–" },
        { key: "shared", title: "Shared", cell: (row) => (row.shared ? "yes" : "no") },
      ],
      { key: (row) => row.client + row.name, label: "Subscriptions" },
    );
    return [
      h(
        "div.card.flush",
        null,
        consumers.view(found.consumers, {
          empty: nothing(
            "Nobody consumes from it just now.",
            "To take messages from a shell:",
            `fairlead receive ${/^[\w.-]+$/.test(this.name) ? this.name : "NAME"}`,
          ),
        }),
      ),
      found.subscriptions.length ? h("div.card.flush", null, subscriptions.view(found.subscriptions)) : null,
    ];
  }

  parameters(found) {
    const rows = Object.entries(found.parameters).map(([name, value]) => ({ name, value }));
    return [
      h(
        "div.card.flush",
        null,
        new Table(
          [
            { key: "name", title: "Setting", cell: (row) => h("span.mono", null, row.name) },
            { key: "value", title: "Value", cell: (row) => h("span.mono", null, JSON.stringify(row.value)) },
          ],
          { sort: "name", label: "Settings" },
        ).view(rows),
      ),
      h(
        "p.muted",
        null,
        "Changed with ",
        h("code", null, `fairlead admin set ${this.name} delivery_limit=5`),
        "; in force at once.",
      ),
    ];
  }

  view() {
    const found = this.detail.data;
    const crumb = h(
      "h1",
      null,
      h("a.crumb", { href: "#/destinations" }, "Destinations"),
      h("span.crumb", null, " / "),
      this.name,
    );
    if (!found) return [h("div.head", null, crumb), waiting(this.detail)];
    const one = found.destination;
    const may = (right) => found.may.includes(right) || found.may.includes("admin");
    const admin = found.may.includes("admin");
    return [
      h(
        "div.head",
        null,
        crumb,
        chip(one.kind),
        flags(one),
        h("span.grow"),
        h(
          "div.buttons",
          null,
          may("send")
            ? h("button.primary", { type: "button", onclick: () => this.acts.send() }, "Send test message …")
            : null,
          admin
            ? h(
                "button",
                { type: "button", onclick: () => this.acts.pause(one.paused) },
                one.paused ? "Resume …" : "Pause …",
              )
            : null,
          admin && one.kind === "queue"
            ? h("button", { type: "button", onclick: () => this.acts.move() }, "Move …")
            : null,
          admin ? h("button.quiet-danger", { type: "button", onclick: () => this.acts.purge(one) }, "Purge …") : null,
          admin && !one.own
            ? h("button.quiet-danger", { type: "button", onclick: () => this.acts.destroy(one) }, "Delete …")
            : null,
        ),
      ),
      this.detail.fault ? h("p.fault", { role: "alert" }, this.detail.fault.message) : null,
      h(
        "div.tiles",
        null,
        tile("Waiting", count(one.depth)),
        tile("Size", bytes(one.bytes).split(" ")[0], bytes(one.bytes).split(" ")[1]),
        tile("In", rate(one.rate_in), "/s"),
        tile("Out", rate(one.rate_out), "/s"),
        tile("Consumers", count(one.consumers)),
        tile("Held", count(one.locked)),
        tile("Redelivered", count(one.redelivered)),
        tile(
          "Oldest waits",
          one.oldest_ms === null ? "–" : span(one.oldest_ms / 1000).split(" ")[0],
          one.oldest_ms === null ? "" : span(one.oldest_ms / 1000).split(" ")[1],
        ),
      ),
      session.me.admin ? this.charts() : null,
      h(
        "div.segments.tabs",
        { role: "tablist", "aria-label": "What to show" },
        TABS.map(([key, text]) =>
          h(
            "button",
            {
              key,
              type: "button",
              role: "tab",
              "aria-selected": String(this.tab === key),
              "aria-pressed": String(this.tab === key),
              onclick: () => {
                this.tab = key;
                redraw();
              },
            },
            text,
            key === "consumers" ? ` ${count(found.consumers.length + found.subscriptions.length)}` : "",
          ),
        ),
      ),
      this.browsing.panel?.view(),
      this.tab === "messages"
        ? this.browsing.view(one, () => this.acts.drop())
        : this.tab === "consumers"
          ? this.consumers(found)
          : this.parameters(found),
    ];
  }
}

export const destination = (...parts) => new Destination(...parts);
