// How figures went: rates, latency, shares, pauses. The server remembers them, so a reload loses nothing.

import { Chart } from "../chart.js";
import { h, redraw } from "../dom.js";
import { bytes, millis, percent, rate, short } from "../format.js";
import { pick, since } from "../history.js";
import { Resource, path } from "../net.js";
import { waiting } from "../table.js";

const WINDOWS = [
  ["5 min", 300, 1],
  ["15 min", 900, 5],
  ["1 h", 3600, 20],
  ["6 h", 21600, 60],
];
const FORMATS = {
  "messages/s": rate,
  "bytes/s": (v) => (v === null || v === undefined ? "–" : `${bytes(v)}/s`),
  bytes,
  ms: millis,
  ratio: percent,
  messages: short,
};
let span = WINDOWS[1];

/** The charts, and which series belong into each: their names, or how they begin. */
export const PANELS = [
  { title: "Messages per second", match: /^messages\.(in|out)$/ },
  { title: "Stored messages per second", match: /^durable\.(stored|delivered|settled)$/ },
  { title: "Round trip", match: /^latency\.p\d+$/, note: "of a tiny message through the server" },
  { title: "Waiting messages", match: /^depth\/[^_]/, most: 8, asked: 100, note: "by destination" },
  { title: "Bytes per second", match: /^bytes\.(in|out)$|^durable\.bytes$/ },
  { title: "Fairness", match: /^manager\/\d+\/share$|^fairness$/, note: "each manager's share of what is read" },
  { title: "Rings and arenas", match: /^manager\/\d+\/(ring\.up|ring\.down|arena)$/, most: 8, note: "how full" },
  { title: "Pauses", match: /^update\.pause$/, points: true, note: "of live updates and takeovers" },
  { title: "Connections", match: /^connections$/ },
  { title: "Dead and expired per second", match: /^durable\.(dead|expired)$/ },
];
const FIRST = "messages.*,latency.*,durable.*"; // until it is known which series there are

/** What to ask for: the series that are there and that some chart wants. */
function wanted(names) {
  if (!names) return FIRST;
  const found = PANELS.flatMap((panel) => names.filter((name) => panel.match.test(name)).slice(0, panel.asked ?? 16));
  return found
    .sort((a, b) => rank(a) - rank(b))
    .slice(0, 200)
    .join(",");
}

const ORDER = ["durable.stored", "durable.delivered", "durable.settled"];
const rank = (name) => ORDER.indexOf(name) + 1 || 99;

class Charts {
  constructor() {
    this.title = "Charts";
    this.charts = new Map(PANELS.map((one) => [one.title, new Chart()]));
    this.history = new Resource(
      () => path("history", { series: wanted(this.history.data?.names), since_ms: since(span[1]), step_s: span[2] }),
      {
        every: 2,
      },
    );
    this.resources = [this.history];
  }

  choose(one) {
    span = one;
    this.history.every = Math.max(2, one[2] / 2);
    this.history.load();
    redraw();
  }

  view() {
    const head = h(
      "div.head",
      null,
      h("h1", null, "Charts"),
      h("span.grow"),
      h(
        "div.segments",
        { role: "group", "aria-label": "How far back" },
        WINDOWS.map((one) =>
          h(
            "button",
            { key: one[0], type: "button", "aria-pressed": String(one === span), onclick: () => this.choose(one) },
            one[0],
          ),
        ),
      ),
    );
    if (!this.history.data) return [head, waiting(this.history)];
    const found = pick(this.history.data);
    const panels = PANELS.map((panel) => ({
      ...panel,
      series: busiest(
        found.series.filter((one) => panel.match.test(one.name)),
        panel.most,
      ),
    })).filter((panel) => panel.series.length);
    return [
      head,
      h(
        "div.columns",
        null,
        panels.map((panel) =>
          h(
            "div.card",
            { key: panel.title },
            this.charts.get(panel.title).view({
              title: panel.title,
              times: found.times,
              from: found.from,
              to: found.to,
              points: panel.points,
              binary: /bytes/.test(panel.series[0].unit),
              note: panel.note,
              format: FORMATS[panel.series[0].unit] ?? short,
              series: panel.series.map((one) => ({ name: label(one.name), values: one.values })),
            }),
          ),
        ),
      ),
    ];
  }
}

/** A chart with a hundred lines says nothing: those that reach highest. */
function busiest(series, most = 12) {
  const top = (one) => Math.max(0, ...one.values.filter((value) => value !== null));
  return series.length <= most ? series : [...series].sort((a, b) => top(b) - top(a)).slice(0, most);
}

function label(name) {
  if (name.startsWith("depth/")) return name.slice(6);
  return name
    .replace(/^manager\/(\d+)\/share$/, "manager $1")
    .replace(/^manager\/(\d+)\/(ring\.)?/, "$1 ")
    .replace(/^(messages|latency|durable|update)\./, "")
    .replace("bytes.", "")
    .replaceAll(".", " ");
}

export const charts = () => new Charts();
