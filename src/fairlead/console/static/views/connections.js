// Who is connected, and the sessions that outlive their connections.

import { ask, tell } from "../dialogs.js";
import { h, redraw } from "../dom.js";
import { brief, count, many, span } from "../format.js";
import { Resource, path, remove, session } from "../net.js";
import { Table, chip, nothing, waiting } from "../table.js";

class Connections {
  constructor() {
    this.title = "Connections";
    this.text = "";
    this.inside = false;
    this.all = new Resource(() => path("connections", { text: this.text, limit: 200 }), { every: 2 });
    this.sessions = new Resource(() => path("sessions", { limit: 200 }), { every: 3 });
    this.resources = [this.all, this.sessions];
    this.table = new Table(
      [
        {
          key: "peer",
          title: "From",
          class: "name",
          cell: (row) => [row.peer || "this host", row.inside ? [" ", chip("server's own")] : null],
        },
        { key: "user", title: "User", cell: (row) => row.user || "anonymous" },
        {
          key: "type",
          title: "Program",
          hide: true,
          cell: (row) => [row.type, row.instance].filter(Boolean).join(" / ") || "–",
        },
        { key: "state", title: "State", hide: true },
        { key: "manager", title: "Manager", num: true },
        {
          key: "subscriptions",
          title: "Subscriptions",
          num: true,
          hide: true,
          cell: (row) => count(row.subscriptions),
        },
        { key: "age_s", title: "Since", num: true, cell: (row) => span(row.age_s) },
        {
          key: "act",
          title: "",
          sort: false,
          class: "num",
          cell: (row) =>
            session.me.admin
              ? h(
                  "button.small.quiet-danger",
                  {
                    type: "button",
                    "aria-label": `Close the connection of ${row.peer || row.id}`,
                    onclick: () => this.cut(row),
                  },
                  "Close …",
                )
              : "",
        },
      ],
      { sort: "age_s", key: (row) => row.id, label: "Connections" },
    );
    this.sessionTable = new Table(
      [
        { key: "id", title: "Session", cell: (row) => h("span.mono", { title: row.id }, brief(row.id, 16)) },
        { key: "user", title: "User", cell: (row) => row.user || "anonymous" },
        { key: "client", title: "Client", hide: true, cell: (row) => row.client || "–" },
        {
          key: "connection",
          title: "State",
          cell: (row) =>
            row.connection === null
              ? chip(`waits to be resumed, ${span(row.waiting_ms / 1000)}`, "warn")
              : chip("connected", "ok"),
        },
        { key: "producers", title: "Producers", num: true, cell: (row) => count(row.producers) },
        { key: "consumers", title: "Consumers", num: true, cell: (row) => count(row.consumers) },
        { key: "held", title: "Held", num: true, cell: (row) => count(row.held) },
        { key: "opened_ms", title: "Since", num: true, cell: (row) => span((Date.now() - row.opened_ms) / 1000) },
      ],
      { sort: "opened_ms", key: (row) => row.id, label: "Sessions" },
    );
  }

  async cut(row) {
    const who = `${row.user || "anonymous"} from ${row.peer || "this host"}`;
    const sure = await ask({
      title: "Close this connection?",
      confirm: "Close it",
      danger: true,
      text: `${who} is cut off. Most clients come back by themselves at once, and their sessions go on; what they held and had not settled is delivered again.`,
    });
    if (!sure) return;
    try {
      await remove(path("connections", row.id));
      tell(`The connection of ${who} is closed.`);
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
      h("h1", null, "Connections"),
      data ? h("span.sub", null, many(data.total, "connection")) : null,
    );
    if (!data) return [head, waiting(this.all)];
    const rows = data.connections.filter((one) => this.inside || !one.inside);
    const hidden = data.connections.length - rows.length;
    return [
      head,
      h(
        "div.filters",
        null,
        h("input", {
          type: "search",
          placeholder: "User, address, program",
          "aria-label": "Filter connections",
          value: this.text,
          oninput: (e) => {
            this.text = e.target.value;
            this.all.load();
          },
        }),
        h(
          "label.check",
          null,
          h("input", {
            type: "checkbox",
            checked: this.inside,
            oninput: (e) => {
              this.inside = e.target.checked;
              redraw();
            },
          }),
          "the server's own",
        ),
        h("span.grow"),
        h(
          "span.muted",
          null,
          data.next
            ? `the newest ${count(data.connections.length)} of ${count(data.total)}`
            : hidden
              ? `${many(hidden, "connection")} of the server's own not shown`
              : "",
        ),
      ),
      h(
        "div.card.flush",
        null,
        this.table.view(rows, {
          empty: this.text
            ? nothing("Nobody matches.", "Change the filter above.")
            : nothing(
                "Nobody is connected.",
                "Connect with a shell, or from a program:",
                "fairlead sub 'demo.>'\nfairlead.connect(\"fairlead://127.0.0.1:7400\")",
              ),
        }),
      ),
      h("h2", null, "Sessions ", this.sessions.data ? h("span.muted", null, count(this.sessions.data.total)) : null),
      this.sessions.data
        ? h(
            "div.card.flush",
            null,
            this.sessionTable.view(this.sessions.data.sessions, {
              empty: nothing(
                "No sessions.",
                "A session begins when a program sends to a queue or takes from one; it survives a lost connection.",
              ),
            }),
          )
        : waiting(this.sessions),
    ];
  }
}

export const connections = () => new Connections();
