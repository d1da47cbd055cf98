// Which view belongs to which address; the order is that of the menu.

import { charts } from "./views/charts.js";
import { connections } from "./views/connections.js";
import { dead } from "./views/dead.js";
import { destination } from "./views/destination.js";
import { destinations } from "./views/destinations.js";
import { directory } from "./views/directory.js";
import { events } from "./views/events.js";
import { feeds } from "./views/feeds.js";
import { pipelines } from "./views/pipelines.js";
import { schedules } from "./views/schedules.js";
import { topology } from "./views/topology.js";
import { tunnels } from "./views/tunnels.js";

export const VIEWS = [
  { name: "topology", text: "Topology", group: "Server", open: topology },
  { name: "charts", text: "Charts", group: "Server", open: charts },
  { name: "events", text: "Events", group: "Server", open: events },
  {
    name: "destinations",
    text: "Destinations",
    group: "Messages",
    everybody: true,
    open: (...parts) => (parts.length ? destination(...parts) : destinations()),
  },
  { name: "dead", text: "Dead messages", group: "Messages", open: dead },
  { name: "schedules", text: "Schedules", group: "Messages", open: schedules },
  { name: "connections", text: "Connections", group: "Clients", open: connections },
  { name: "tunnels", text: "Tunnels", group: "Clients", open: tunnels },
  { name: "directory", text: "Directory", group: "Clients", open: directory },
  { name: "feeds", text: "Feeds", group: "Data", open: feeds },
  { name: "pipelines", text: "Pipelines", group: "Data", open: pipelines },
];

/** The route of an address such as #/destinations/orders, and what follows in it. */
export function find(hash) {
  const [name, ...parts] = hash.replace(/^#\//, "").split("/");
  const route = VIEWS.find((one) => one.name === name) ?? VIEWS[0];
  return [
    route,
    parts.filter(Boolean).map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    }),
  ];
}
