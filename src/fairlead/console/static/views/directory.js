// The directory's three tables: brokers, clusters, applications.

import { h } from "../dom.js";
import { Resource } from "../net.js";
import { chip, nothing, waiting } from "../table.js";
import { anyTable, factList } from "../words.js";

class DirectoryView {
  constructor() {
    this.title = "Directory";
    this.all = new Resource(() => "directory", { every: 4 });
    this.resources = [this.all];
    this.brokers = anyTable("Brokers", ["name", "broker"]);
    this.clusters = anyTable("Clusters", ["name", "cluster"]);
    this.applications = anyTable("Applications", ["name", "application"]);
  }

  view() {
    const data = this.all.data;
    const head = h(
      "div.head",
      null,
      h("h1", null, "Directory"),
      data?.revision !== null && data ? h("span.sub", null, `revision ${data.revision}`) : null,
      data?.stale ? chip("may be out of date", "warn") : null,
    );
    if (!data) return [head, waiting(this.all)];
    const empty = !data.brokers.length && !data.clusters.length && !data.applications.length;
    if (empty && !data.serving && !("name" in data.broker)) {
      return [
        head,
        h(
          "div.card",
          null,
          nothing(
            "This server is no broker of a directory.",
            data.note || "A directory lets programs find each other by name, wherever they are connected:",
            "fairlead directory up --help",
          ),
        ),
      ];
    }
    return [
      head,
      data.note ? h("p.note", null, data.note) : null,
      "name" in data.broker ? h("section.card", null, h("h2", null, "This broker"), factList(data.broker)) : null,
      h(
        "section.card.flush",
        null,
        h("h2", null, "Brokers"),
        this.brokers.view(
          data.brokers,
          nothing("No brokers.", "A broker registers itself when it starts with a directory."),
        ),
      ),
      h(
        "section.card.flush",
        null,
        h("h2", null, "Clusters"),
        this.clusters.view(
          data.clusters,
          nothing(
            "No clusters.",
            "Group brokers so that programs may ask for any of them:",
            "fairlead directory join BROKER CLUSTER",
          ),
        ),
      ),
      h(
        "section.card.flush",
        null,
        h("h2", null, "Applications"),
        this.applications.view(
          data.applications,
          nothing("No applications.", 'A program registers with connect(…, application="name").'),
        ),
      ),
    ];
  }
}

export const directory = () => new DirectoryView();
