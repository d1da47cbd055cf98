// One message, shown as text, JSON or bytes. Whatever it contains is text here: nothing of it is interpreted.

import { h, redraw } from "./dom.js";
import { bytes, clock, span } from "./format.js";
import { get, path } from "./net.js";
import { chip } from "./table.js";

const FORMS = [
  ["auto", "Auto"],
  ["text", "Text"],
  ["json", "JSON"],
  ["hex", "Hex"],
];
const STATE = { ready: "ok", locked: "accent", delayed: "warn", dead: "bad", consumed: "" };

export const stateChip = (state) => chip(state === "locked" ? "held" : state, STATE[state] ?? "");

/** The first line of a body, for tables. */
export function preview(message) {
  if (message.body === null || message.body === undefined) return "too large to be shown here";
  const text = message.shown_as === "hex" ? message.body.split("\n")[0] : message.body;
  return text.replace(/\s+/g, " ").slice(0, 160) || "(empty)";
}

/** A panel for one message; `where` is the path of its destination's messages. */
export class MessagePanel {
  constructor(destination, order, close) {
    this.destination = destination;
    this.order = order;
    this.close = close;
    this.form = "auto";
    this.whole = 16384;
    this.message = null;
    this.fault = "";
    this.load();
  }

  async load() {
    try {
      this.message = await get(
        path("destinations", this.destination, "messages", this.order, { as: this.form, bytes: this.whole }),
      );
      this.fault = "";
    } catch (fault) {
      this.fault = fault.message;
    }
    redraw();
  }

  show(form) {
    this.form = form;
    this.load();
  }

  view(actions = null) {
    const one = this.message;
    return h(
      "section.card.message",
      { "aria-label": `Message ${this.order}`, key: `message${this.order}` },
      h(
        "div.head",
        null,
        h("h2", null, `Message ${this.order}`),
        one ? stateChip(one.state) : null,
        h("span.grow"),
        h(
          "div.segments",
          { role: "group", "aria-label": "Show the body as" },
          FORMS.map(([form, text]) =>
            h(
              "button",
              { key: form, type: "button", "aria-pressed": String(this.form === form), onclick: () => this.show(form) },
              text,
            ),
          ),
        ),
        actions,
        h("button", { type: "button", onclick: this.close }, "Close"),
      ),
      this.fault ? h("p.fault", { role: "alert" }, this.fault) : null,
      one
        ? [
            h(
              "pre.body",
              { tabindex: "0", "aria-label": "Body", class: one.shown_as },
              one.body ?? "The body is too large to be shown here.",
            ),
            one.cut
              ? h(
                  "p.muted",
                  null,
                  `Cut: the whole has ${bytes(one.bytes)}. `,
                  this.whole < 1048576
                    ? h(
                        "button.small",
                        {
                          type: "button",
                          onclick: () => {
                            this.whole = 1048576;
                            this.load();
                          },
                        },
                        "Show more",
                      )
                    : null,
                )
              : null,
            h(
              "div.columns",
              null,
              h(
                "dl.facts",
                null,
                facts([
                  ["Id", h("span.mono", null, one.id)],
                  ["Size", bytes(one.bytes)],
                  ["Sent", clock(one.sent_ms, { date: true })],
                  ["Arrived", clock(one.arrival_ms, { date: true })],
                  ["Deliveries", one.deliveries],
                  ["Priority", one.priority],
                  ["Key", one.key ?? "–"],
                  ["Kept", one.persistent ? "on disk" : "in memory only"],
                  ["Lives for", one.ttl_ms ? span(one.ttl_ms / 1000) : "ever"],
                  one.delay_ms ? ["Delayed by", span(one.delay_ms / 1000)] : null,
                ]),
              ),
              h("div", null, table("Headers", one.headers), table("Properties", one.properties)),
            ),
          ]
        : null,
    );
  }
}

function facts(rows) {
  return rows
    .filter(Boolean)
    .flatMap(([name, value]) => [h("dt", { key: `t${name}` }, name), h("dd", { key: `d${name}` }, value)]);
}

function table(title, values) {
  const rows = Object.entries(values ?? {});
  if (!rows.length) return null;
  return h(
    "div.facts-block",
    null,
    h("h3", null, title),
    h(
      "dl.facts",
      null,
      facts(rows.map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : String(value)])),
    ),
  );
}
