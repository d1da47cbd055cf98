// The messages of a destination, page by page: which are there, which are chosen, and the one that is looked at.

import { tell } from "./dialogs.js";
import { h, redraw } from "./dom.js";
import { bytes, count, span } from "./format.js";
import { MessagePanel, preview, stateChip } from "./message.js";
import { Resource, get, path } from "./net.js";
import { Table, nothing, waiting } from "./table.js";

const PAGE = 50;

export class Browsing {
  constructor(name) {
    this.name = name;
    this.selector = "";
    this.picked = new Set();
    this.panel = null;
    this.extra = []; // pages after the first
    this.next = undefined;
    this.page = new Resource(() => this.where(), { every: 3 });
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
        { key: "state", title: "State", sort: false, cell: (row) => stateChip(row.state) },
        {
          key: "age",
          title: "Waits",
          num: true,
          sort: false,
          hide: true,
          cell: (row) => span((Date.now() - row.arrival_ms) / 1000),
        },
        { key: "bytes", title: "Size", num: true, sort: false, hide: true, cell: (row) => bytes(row.bytes) },
        {
          key: "deliveries",
          title: "Deliveries",
          num: true,
          sort: false,
          hide: true,
          cell: (row) => count(row.deliveries),
        },
        { key: "key", title: "Key", sort: false, hide: true, cell: (row) => row.key ?? "" },
        {
          key: "body",
          title: "Body",
          sort: false,
          class: "preview",
          cell: (row) => h("span.mono", null, preview(row)),
        },
      ],
      { key: (row) => row.order, label: "Messages" },
    );
  }

  where(more = {}) {
    return path("destinations", this.name, "messages", { limit: PAGE, selector: this.selector, bytes: 1024, ...more });
  }

  open(order) {
    this.panel = new MessagePanel(this.name, order, () => {
      this.panel = null;
      redraw();
    });
    redraw();
  }

  refresh() {
    this.extra = [];
    this.next = undefined;
    return this.page.load();
  }

  async more() {
    try {
      const found = await get(this.where({ after: this.next ?? this.page.data.next }));
      this.extra.push(...found.messages);
      this.next = found.next;
    } catch (fault) {
      tell(fault.message, "bad");
    }
    redraw();
  }

  view(one, drop) {
    const data = this.page.data;
    if (!data) return waiting(this.page);
    const rows = [
      ...data.messages,
      ...this.extra.filter((late) => !data.messages.some((first) => first.order === late.order)),
    ];
    const next = this.next === undefined ? data.next : this.next;
    return [
      h(
        "div.filters",
        null,
        h("input.wide", {
          type: "search",
          placeholder: "Selector: colour = 'green' AND size > 2",
          "aria-label": "Selector",
          value: this.selector,
          onchange: (e) => {
            this.selector = e.target.value;
            this.refresh();
          },
        }),
        h("span.grow"),
        this.picked.size ? h("span.muted", null, `${this.picked.size} chosen`) : null,
        this.picked.size ? h("button.quiet-danger", { type: "button", onclick: () => drop() }, "Remove …") : null,
      ),
      this.page.fault ? h("p.fault", { role: "alert" }, this.page.fault.message) : null,
      h(
        "div.card.flush",
        null,
        this.messages.view(rows, {
          row: (row) => ({ class: this.panel?.order === row.order ? "picked" : "" }),
          empty: this.selector
            ? nothing("Nothing matches this selector.", "Leave it empty to see everything.")
            : nothing(
                "Nothing waits here.",
                one.kind === "queue"
                  ? "Send a test message above, or from a shell:"
                  : "Messages of a topic are kept for its durable subscriptions, or if it retains them. Send one above, or from a shell:",
                `fairlead send ${/^[\w.-]+$/.test(this.name) ? this.name : "NAME"} 'one book'`,
              ),
        }),
        next || data.waits
          ? h(
              "div.more",
              null,
              next ? h("button", { type: "button", onclick: () => this.more() }, "Show more") : null,
              h("span", null, data.waits ? "The rest is being read from disk." : `${count(rows.length)} shown`),
            )
          : null,
      ),
    ];
  }
}
