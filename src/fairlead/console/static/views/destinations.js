// Queues and topics: how much waits in each, how fast it comes and goes, and what holds it up.

import { ask, tell } from "../dialogs.js";
import { h, redraw } from "../dom.js";
import { bytes, count, many, rate, short, span } from "../format.js";
import { Resource, live, path, post } from "../net.js";
import { toDestination } from "../links.js";
import { Table, chip, nothing, tile, waiting } from "../table.js";

export function flags(one) {
  return [one.paused ? chip("paused", "warn") : null, one.blocked ? chip("blocked", "bad") : null];
}

const table = new Table(
  [
    {
      key: "name",
      title: "Name",
      class: "name",
      cell: (row) => [h("a", { href: toDestination(row.name), title: row.name }, row.name), " ", flags(row)],
    },
    { key: "kind", title: "Kind", hide: true },
    { key: "depth", title: "Waiting", num: true, cell: (row) => count(row.depth) },
    { key: "bytes", title: "Size", num: true, hide: true, cell: (row) => (row.bytes ? bytes(row.bytes) : "0") },
    { key: "rate_in", title: "In /s", num: true, cell: (row) => rate(row.rate_in) },
    { key: "rate_out", title: "Out /s", num: true, cell: (row) => rate(row.rate_out) },
    {
      key: "consumers",
      title: "Consumers",
      num: true,
      hide: true,
      value: (row) => row.consumers + row.subscriptions,
      cell: (row) => count(row.kind === "topic" ? row.consumers + row.subscriptions : row.consumers),
      hint: "Consumers; of a topic its subscriptions too",
    },
    {
      key: "locked",
      title: "Held",
      num: true,
      hide: true,
      cell: (row) => count(row.locked),
      hint: "Given to consumers, not yet settled",
    },
    { key: "redelivered", title: "Redelivered", num: true, hide: true, cell: (row) => count(row.redelivered) },
    {
      key: "oldest_ms",
      title: "Oldest",
      num: true,
      cell: (row) => (row.oldest_ms === null ? "–" : span(row.oldest_ms / 1000)),
      hint: "For how long the oldest waiting message has been there",
    },
  ],
  { sort: "depth", descending: true, label: "Destinations" },
);

const state = { text: "", kind: "", own: false };

export async function create(done) {
  const asked = await ask({
    title: "Create a queue or topic",
    confirm: "Create it",
    text: "A queue hands each message to one consumer; a topic gives each subscription its own copy. What is there already stays as it is.",
    fields: [
      { name: "name", label: "Name", required: true, placeholder: "orders" },
      { name: "kind", label: "Kind", kind: "select", choices: ["queue", "topic"], value: "queue" },
    ],
    check: (values) => (values.name.trim() ? "" : "It needs a name."),
  });
  if (!asked) return;
  try {
    const made = await post(path("destinations", asked.name.trim()), { kind: asked.kind });
    tell(made.existed ? `${made.name} was there already.` : `The ${asked.kind} ${made.name} is made.`);
    done?.();
  } catch (fault) {
    tell(fault.message, "bad");
  }
}

class Destinations {
  constructor() {
    this.title = "Destinations";
    this.first = new Resource(
      () => path("destinations", { limit: 500, sort: "depth", descending: true, pattern: this.pattern() }),
      { every: 2 },
    );
    this.resources = [this.first];
  }

  pattern() {
    return /[*>]/.test(state.text) ? state.text : "";
  }

  view() {
    const all = this.first.data;
    const head = h(
      "div.head",
      null,
      h("h1", null, "Destinations"),
      h("span.grow"),
      h("button.primary", { type: "button", onclick: () => create(() => this.first.load()) }, "Create …"),
    );
    if (!all) return [head, waiting(this.first)];
    const text = this.pattern() ? "" : state.text.toLowerCase();
    const rows = all.destinations.filter(
      (one) =>
        (state.own || !one.own) &&
        (!state.kind || one.kind === state.kind) &&
        (!text || one.name.toLowerCase().includes(text)),
    );
    const held = rows.filter((one) => one.blocked).length; // destinations whose producers wait
    const sum = (key) => rows.reduce((total, one) => total + (one[key] ?? 0), 0);
    const visible = all.destinations.filter((one) => state.own || !one.own).length;
    return [
      head,
      h(
        "div.tiles",
        null,
        tile("Waiting", short(sum("depth"))),
        tile("In", rate(sum("rate_in")), "/s"),
        tile("Out", rate(sum("rate_out")), "/s"),
        tile("Held by consumers", short(sum("locked"))),
        tile("Redelivered", short(sum("redelivered"))),
        tile("Held back", count(held), "", held ? "bad" : ""),
      ),
      h(
        "div.filters",
        null,
        h("input", {
          type: "search",
          placeholder: "Filter by name, or orders.>",
          "aria-label": "Filter by name; press / to come here",
          value: state.text,
          oninput: (e) => {
            state.text = e.target.value;
            this.first.load();
            redraw();
          },
        }),
        h(
          "select",
          {
            "aria-label": "Kind",
            value: state.kind,
            oninput: (e) => {
              state.kind = e.target.value;
              redraw();
            },
          },
          h("option", { value: "" }, "Queues and topics"),
          h("option", { value: "queue" }, "Queues"),
          h("option", { value: "topic" }, "Topics"),
        ),
        h(
          "label.check",
          null,
          h("input", {
            type: "checkbox",
            checked: state.own,
            oninput: (e) => {
              state.own = e.target.checked;
              redraw();
            },
          }),
          "the server's own",
        ),
        h("span.grow"),
        h(
          "span.muted",
          { "aria-live": "polite" },
          all.total > all.destinations.length
            ? `${count(rows.length)} shown of ${count(all.total)}: narrow it by a pattern`
            : many(rows.length, "destination"),
        ),
      ),
      all.complete
        ? null
        : h(
            "p.note",
            null,
            chip("incomplete", "warn"),
            " A group did not answer, or there are more destinations than are looked at.",
          ),
      h(
        "div.card.flush",
        null,
        table.view(rows, {
          empty: visible
            ? nothing("Nothing matches.", "Change the filter above.")
            : nothing(
                "No queues or topics yet.",
                "Create one here, or send a first message:",
                "fairlead send orders 'one book'",
              ),
        }),
      ),
    ];
  }
}

export const destinations = () => new Destinations();
