// The event log: what the server did and who ordered it, the newest first, as it happens.

import { h, redraw } from "../dom.js";
import { clock, count } from "../format.js";
import { Resource, live, path } from "../net.js";
import { chip, nothing, waiting } from "../table.js";

const LEVELS = ["debug", "info", "warning", "error"];
const SHOWN = 300;
const filter = { level: "info", code: "", text: "", follow: true };

class EventsView {
  constructor() {
    this.title = "Events";
    this.late = [];
    this.all = new Resource(
      () => path("events", { level: filter.level, code: filter.code, text: filter.text, limit: SHOWN }),
      { every: 3600 },
    );
    this.resources = [this.all];
    this.hear = (event) => {
      if (!filter.follow || !matches(event.detail)) return;
      this.late.unshift(event.detail);
      this.late.length = Math.min(this.late.length, SHOWN);
    };
    live.addEventListener("event", this.hear);
  }

  leave() {
    live.removeEventListener("event", this.hear);
  }

  async again() {
    await this.all.load();
    this.late = [];
    redraw();
  }

  view() {
    const data = this.all.data;
    const head = h(
      "div.head",
      null,
      h("h1", null, "Events"),
      h("span.grow"),
      h(
        "button",
        {
          type: "button",
          "aria-pressed": String(filter.follow),
          onclick: () => {
            filter.follow = !filter.follow;
            if (filter.follow) this.again();
            redraw();
          },
        },
        filter.follow ? "Hold" : "Follow",
      ),
    );
    const change = (name) => (event) => {
      filter[name] = event.target.value;
      this.again();
    };
    const filters = h(
      "div.filters",
      null,
      h(
        "select",
        { "aria-label": "Level", value: filter.level, oninput: change("level") },
        LEVELS.map((one) => h("option", { value: one }, one === "error" ? "errors only" : `${one} and worse`)),
      ),
      h("input", {
        type: "search",
        placeholder: "Text",
        "aria-label": "Filter by text",
        value: filter.text,
        oninput: change("text"),
      }),
      h("input", {
        placeholder: "Code",
        "aria-label": "Filter by code",
        value: filter.code,
        onchange: change("code"),
        list: "codes",
      }),
    );
    if (!data) return [head, filters, waiting(this.all)];
    const known = new Set(data.events.map(identity));
    const rows = [...this.late.filter((one) => !known.has(identity(one))), ...data.events].slice(0, SHOWN);
    const codes = [...new Set(rows.map((one) => one.code))].sort();
    return [
      head,
      filters,
      h(
        "datalist",
        { id: "codes" },
        codes.map((code) => h("option", { key: code, value: code })),
      ),
      h(
        "div.card.flush",
        null,
        rows.length
          ? h(
              "ol.log",
              {
                style: { "--when": rows.some((one) => clock(one.ms).length > 8) ? "148px" : "64px" },
                "aria-live": filter.follow ? "polite" : "off",
                "aria-label": "Events, the newest first",
              },
              rows.map((one) =>
                h(
                  "li",
                  { key: identity(one), class: one.level },
                  h("time", null, clock(one.ms)),
                  h(
                    "span.level",
                    null,
                    chip(one.level, { warning: "warn", error: "bad", info: "", debug: "" }[one.level]),
                  ),
                  h(
                    "span.what",
                    null,
                    h("span.text", null, one.text),
                    h(
                      "span.sub",
                      null,
                      [one.code, one.module, one.node, one.user ? `by ${one.user}` : "", facts(one)]
                        .filter(Boolean)
                        .join(" · "),
                    ),
                  ),
                ),
              ),
            )
          : nothing(
              "No events match.",
              "Widen the level or clear the filters. From a shell:",
              "fairlead log --since 10m",
            ),
      ),
      data.complete ? null : h("p.muted", null, `The newest ${count(data.events.length)} that were looked at.`),
    ];
  }
}

const identity = (one) => `${one.ms}|${one.code}|${one.node}|${one.text}`;

/** What else it says: "destination orders, messages 3". */
function facts(one) {
  return Object.entries(one.facts ?? {})
    .map(([name, found]) => `${name} ${typeof found === "object" ? JSON.stringify(found) : found}`)
    .join(", ");
}

function matches(one) {
  return (
    LEVELS.indexOf(one.level) >= LEVELS.indexOf(filter.level) &&
    (!filter.code || one.code === filter.code) &&
    (!filter.text || `${one.text} ${facts(one)}`.toLowerCase().includes(filter.text.toLowerCase()))
  );
}

export const events = () => new EventsView();
