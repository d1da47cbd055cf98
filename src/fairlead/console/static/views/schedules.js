// Messages that come later, once or again and again.

import { ask, tell } from "../dialogs.js";
import { h } from "../dom.js";
import { bytes, clock, many, span } from "../format.js";
import { toDestination } from "../links.js";
import { Resource, path, remove } from "../net.js";
import { Table, nothing, waiting } from "../table.js";

class Schedules {
  constructor() {
    this.title = "Schedules";
    this.all = new Resource(() => "schedules", { every: 3 });
    this.resources = [this.all];
    this.table = new Table(
      [
        {
          key: "due_ms",
          title: "Due",
          cell: (row) => [
            clock(row.due_ms),
            h("span.sub", null, row.due_ms > Date.now() ? ` in ${span((row.due_ms - Date.now()) / 1000)}` : " now"),
          ],
        },
        {
          key: "destination",
          title: "Destination",
          class: "name",
          cell: (row) => h("a", { href: toDestination(row.destination) }, row.destination),
        },
        { key: "cron", title: "Repeats", cell: (row) => (row.cron ? h("span.mono", null, row.cron) : "once") },
        { key: "order", title: "Number", num: true, hide: true },
        { key: "bytes", title: "Size", num: true, hide: true, cell: (row) => bytes(row.bytes) },
        {
          key: "act",
          title: "",
          sort: false,
          class: "num",
          cell: (row) =>
            h("button.small.quiet-danger", { type: "button", onclick: () => this.cancel(row) }, "Cancel …"),
        },
      ],
      { sort: "due_ms", key: (row) => `${row.destination}/${row.order}`, label: "Schedules" },
    );
  }

  async cancel(row) {
    const sure = await ask({
      title: "Cancel this schedule?",
      confirm: "Cancel the schedule",
      danger: true,
      text: row.cron
        ? `${row.destination} gets nothing more from the schedule ${row.cron}. What it sent already stays.`
        : `The message due at ${clock(row.due_ms)} for ${row.destination} is removed and never delivered.`,
    });
    if (!sure) return;
    try {
      await remove(path("schedules", row.destination, row.order));
      tell("The schedule is cancelled.");
    } catch (fault) {
      tell(fault.message, "bad");
    }
    await this.all.load();
  }

  view() {
    const data = this.all.data;
    const head = h(
      "div.head",
      null,
      h("h1", null, "Schedules"),
      data ? h("span.sub", null, many(data.schedules.length, "message")) : null,
    );
    if (!data) return [head, waiting(this.all)];
    return [
      head,
      data.complete ? null : h("p.muted", null, "There are more than are shown here."),
      h(
        "div.card.flush",
        null,
        this.table.view(data.schedules, {
          empty: nothing(
            "Nothing is scheduled.",
            "Send something for later:",
            "fairlead send orders 'one book' --delay 60",
          ),
        }),
      ),
    ];
  }
}

export const schedules = () => new Schedules();
