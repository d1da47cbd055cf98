// Messages nobody could take: why they died, where they were addressed, and the way back.

import { ask, tell } from "../dialogs.js";
import { h, redraw } from "../dom.js";
import { bytes, count, many, span } from "../format.js";
import { toDestination } from "../links.js";
import { MessagePanel, preview } from "../message.js";
import { Resource, get, path, post } from "../net.js";
import { Table, chip, nothing, waiting } from "../table.js";

const PAGE = 50;

class Dead {
  constructor() {
    this.title = "Dead messages";
    this.filter = { queue: "", reason: "", origin: "" };
    this.picked = new Set();
    this.panel = null;
    this.extra = [];
    this.next = undefined;
    this.page = new Resource(() => path("dead", { ...this.filter, limit: PAGE }), { every: 4 });
    this.resources = [this.page];
    this.reasons = new Table(
      [
        { key: "reason", title: "Reason", cell: (row) => chip(row.reason || "unknown", "bad") },
        {
          key: "origin",
          title: "Was addressed to",
          class: "name",
          cell: (row) => (row.origin ? h("a", { href: toDestination(row.origin) }, row.origin) : "–"),
        },
        { key: "messages", title: "Messages", num: true, cell: (row) => count(row.messages) },
        {
          key: "act",
          title: "",
          sort: false,
          class: "num",
          cell: (row) =>
            h(
              "div.buttons.right",
              null,
              h(
                "button.small",
                { type: "button", "aria-pressed": String(this.shows(row)), onclick: () => this.show(row) },
                this.shows(row) ? "Show all" : "Show these",
              ),
              h(
                "button.small",
                {
                  type: "button",
                  onclick: () =>
                    this.redrive(
                      { reason: row.reason, origin: row.origin },
                      `of reason ${row.reason} that were sent to ${row.origin}`,
                    ),
                },
                "Redrive …",
              ),
            ),
        },
      ],
      {
        sort: "messages",
        descending: true,
        key: (row) => `${row.reason}\n${row.origin}`,
        label: "Dead messages by reason",
      },
    );
    this.messages = new Table(
      [
        {
          key: "pick",
          title: "",
          sort: false,
          cell: (row) =>
            h("input", {
              type: "checkbox",
              "aria-label": `Choose message ${row.order}`,
              checked: this.picked.has(row.order),
              oninput: (e) => {
                if (e.target.checked) this.picked.add(row.order);
                else this.picked.delete(row.order);
                redraw();
              },
            }),
        },
        {
          key: "order",
          title: "Number",
          num: true,
          sort: false,
          cell: (row) => h("button.link", { type: "button", onclick: () => this.open(row.order) }, String(row.order)),
        },
        {
          key: "reason",
          title: "Reason",
          sort: false,
          cell: (row) => chip(row.headers["dead-reason"] ?? "unknown", "bad"),
        },
        {
          key: "origin",
          title: "Was addressed to",
          sort: false,
          hide: true,
          cell: (row) => row.headers["dead-destination"] ?? "–",
        },
        {
          key: "age",
          title: "Dead for",
          num: true,
          sort: false,
          cell: (row) => span((Date.now() - row.arrival_ms) / 1000),
        },
        { key: "bytes", title: "Size", num: true, sort: false, hide: true, cell: (row) => bytes(row.bytes) },
        {
          key: "body",
          title: "Body",
          sort: false,
          class: "preview",
          cell: (row) => h("span.mono", null, preview(row)),
        },
      ],
      { key: (row) => row.order, label: "Dead messages" },
    );
  }

  queue() {
    return this.filter.queue || this.page.data?.queues[0] || "_DMQ";
  }

  shows(row) {
    return this.filter.reason === row.reason && this.filter.origin === row.origin;
  }

  show(row) {
    const all = this.shows(row);
    Object.assign(this.filter, all ? { reason: "", origin: "" } : { reason: row.reason, origin: row.origin });
    this.refresh();
  }

  refresh() {
    this.extra = [];
    this.next = undefined;
    this.picked.clear();
    return this.page.load();
  }

  open(order) {
    this.panel = new MessagePanel(this.queue(), order, () => {
      this.panel = null;
      redraw();
    });
    redraw();
  }

  async more() {
    try {
      const found = await get(path("dead", { ...this.filter, limit: PAGE, after: this.next ?? this.page.data.next }));
      this.extra.push(...found.messages);
      this.next = found.next;
    } catch (fault) {
      tell(fault.message, "bad");
    }
    redraw();
  }

  /** A dry run first; its outcome is what the dialog asks about. */
  async redrive(which, words) {
    const wish = { queue: this.queue(), ...which };
    let would;
    try {
      would = await post("dead/redrive", { ...wish, dry_run: true });
    } catch (fault) {
      return tell(fault.message, "bad");
    }
    const sure = await ask({
      title: would.moved ? `Redrive ${many(would.moved, "message")}?` : "Nothing can be redriven",
      confirm: would.moved ? "Redrive" : "Close",
      text: [
        h("p", null, `This was a dry run over the messages ${words}; nothing has been moved yet.`),
        outcome(would, "would go to", "would stay"),
        would.more ? h("p.muted", null, "There are more than one step takes: do it again afterwards.") : null,
      ],
    });
    if (!sure || !would.moved) return;
    try {
      const done = await post("dead/redrive", { ...wish, dry_run: false });
      const stayed = Object.values(done.failed).reduce((sum, one) => sum + one, 0);
      tell(
        `${many(done.moved, "message")} redriven${stayed ? `, ${count(stayed)} stayed` : ""}.${done.more ? " There are more: do it again." : ""}`,
      );
    } catch (fault) {
      tell(fault.message, "bad");
    }
    await this.refresh();
  }

  view() {
    const data = this.page.data;
    const head = h(
      "div.head",
      null,
      h("h1", null, "Dead messages"),
      data ? h("span.sub", null, many(data.total, "message")) : null,
      h("span.grow"),
      data && data.queues.length > 1
        ? h(
            "select",
            {
              "aria-label": "Dead queue",
              value: this.queue(),
              oninput: (e) => {
                this.filter.queue = e.target.value;
                this.refresh();
              },
            },
            data.queues.map((one) => h("option", { value: one }, one)),
          )
        : null,
      this.picked.size
        ? h(
            "button.primary",
            { type: "button", onclick: () => this.redrive({ orders: [...this.picked] }, "you have chosen") },
            `Redrive ${this.picked.size} chosen …`,
          )
        : null,
      data?.total
        ? h(
            "button",
            {
              type: "button",
              onclick: () =>
                this.redrive(
                  { reason: this.filter.reason, origin: this.filter.origin },
                  this.filter.reason ? "shown below" : "in the dead queue",
                ),
            },
            this.filter.reason ? "Redrive these …" : "Redrive all …",
          )
        : null,
    );
    if (!data) return [head, waiting(this.page)];
    const rows = [
      ...data.messages,
      ...this.extra.filter((late) => !data.messages.some((first) => first.order === late.order)),
    ];
    const next = this.next === undefined ? data.next : this.next;
    return [
      head,
      this.page.fault ? h("p.fault", { role: "alert" }, this.page.fault.message) : null,
      data.total === 0
        ? h(
            "div.card",
            null,
            nothing(
              "Nothing has died.",
              "Messages come here when they were delivered too often, expired where that is kept, or could not be delivered at all.",
              "fairlead admin set orders delivery_limit=5",
            ),
          )
        : [
            h(
              "section.card.flush",
              null,
              h("h2", null, "By reason"),
              this.reasons.view(data.reasons),
              data.counted < data.total ? h("div.more", null, `Counted over the first ${count(data.counted)}.`) : null,
            ),
            this.panel ? this.panel.view() : null,
            h(
              "section.card.flush",
              null,
              h(
                "h2",
                null,
                this.filter.reason
                  ? `Dead of ${this.filter.reason}, once sent to ${this.filter.origin}`
                  : "All dead messages",
              ),
              this.messages.view(rows, {
                row: (row) => ({ class: this.panel?.order === row.order ? "picked" : "" }),
                empty: nothing("Nothing matches.", data.waits ? "The messages are being read from disk." : ""),
              }),
              next
                ? h(
                    "div.more",
                    null,
                    h("button", { type: "button", onclick: () => this.more() }, "Show more"),
                    h("span", null, `${count(rows.length)} shown`),
                  )
                : null,
            ),
          ],
    ];
  }
}

function outcome(would, go, stay) {
  const rows = [
    ...Object.entries(would.to).map(([name, messages]) => [messages, go, name, "ok"]),
    ...Object.entries(would.failed).map(([reason, messages]) => [messages, stay, reason, "warn"]),
  ];
  if (!rows.length) return h("p", null, "No message matches.");
  return h(
    "table.outcome",
    null,
    h(
      "tbody",
      null,
      rows.map(([messages, verb, name, kind]) =>
        h(
          "tr",
          { key: verb + name },
          h("td.num", null, count(messages)),
          h("td", null, verb),
          h("td.wide", null, chip(name, kind)),
        ),
      ),
    ),
  );
}

export const dead = () => new Dead();
