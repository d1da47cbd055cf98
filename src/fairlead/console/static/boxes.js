// What the boxes of the drawing say: for each name its process, those that stand by or have just gone, and its figures.

import { bytes, count, millis, percent, rate, short } from "./format.js";

const LAYER = {
  clients: 0,
  dispatcher: 1,
  "tunnel-gateway": 1,
  "tunnel-broker": 1,
  manager: 2,
  router: 3,
  "message-manager": 3,
  agent: 3,
};

/** What each box says. */
export function boxes(overview, changes) {
  const active = new Map();
  for (const one of overview.processes) {
    const box = active.get(one.name) ?? { name: one.name, role: one.role, index: one.index, main: null, spare: [] };
    const serves = one.state !== "standby" && one.state !== "parked";
    if (serves && (!box.main || box.main.state !== "active")) {
      if (box.main) box.spare.push(box.main);
      box.main = one;
    } else box.spare.push(one);
    active.set(one.name, box);
  }
  for (const { process } of changes.gone.values()) {
    const box = active.get(process.name) ?? {
      name: process.name,
      role: process.role,
      index: process.index,
      main: null,
      spare: [],
    };
    active.set(process.name, box);
    box.spare.push({ ...process, state: "gone" });
  }
  const found = [...active.values()].map((box) => ({
    ...box,
    layer: LAYER[box.role] ?? 4,
    ...content(box, overview),
    fresh: changes.fresh.has(box.main?.pid),
  }));
  const { totals } = overview;
  found.push({
    name: "clients",
    role: "clients",
    layer: 0,
    spare: [],
    main: null,
    meters: [],
    lines: [
      ["connections", count(totals.connections)],
      ["in", `${rate(totals.messages_in)} /s`],
      ["out", `${rate(totals.messages_out)} /s`],
    ],
  });
  for (const talk of overview.talks) {
    for (const end of [talk.source, talk.target]) {
      if (found.some((box) => box.name === end)) continue;
      found.push({ name: end, role: "elsewhere", layer: 4, spare: [], main: null, meters: [], lines: [] });
    }
  }
  return found.sort(
    (a, b) => a.layer - b.layer || rank(a) - rank(b) || a.name.localeCompare(b.name, "en", { numeric: true }),
  );
}

const RANK = { router: 0, dispatcher: 0, "message-manager": 1, agent: 1, supervisor: 0, console: 1 };
const rank = (box) => RANK[box.role] ?? 2;

function content(box, overview) {
  if (box.role === "manager") {
    const one = overview.managers.find((manager) => manager.index === box.index);
    if (!one) return { lines: [], meters: [] };
    const lines = [
      ["connections", count(one.connections)],
      ["in", `${rate(one.messages_in)} /s`],
      ["out", `${rate(one.messages_out)} /s`],
    ];
    if (one.share !== null && one.share !== undefined) lines.push(["share", percent(one.share)]);
    if (one.draining) lines.push(["", "draining"]);
    if (!one.reading) lines.push(["", "holds its clients back"]);
    return {
      lines,
      meters: [
        ["up", one.up.fill, `ring to the router: ${bytes(one.up.bytes)}`],
        ["down", one.down.fill, `ring from the router: ${bytes(one.down.bytes)}`],
        ["arena", one.arena.fill, `bodies under way: ${bytes(one.arena.bytes)}`],
      ],
    };
  }
  if (box.role === "router") {
    const one = overview.router;
    return {
      meters: [],
      lines: [
        ["routed", `${rate(one.routed)} /s`],
        ["deliveries", `${rate(one.deliveries)} /s`],
        ["last pause", millis(one.last_pause_ms)],
        ["takeovers", count(one.takeovers)],
      ],
    };
  }
  if (box.role === "message-manager" || box.role === "agent") {
    const one = overview.messages;
    return {
      meters: [],
      lines: [
        ["messages", count(one.depth)],
        ["stored", `${rate(one.stored)} /s`],
        ["delivered", `${rate(one.delivered)} /s`],
        ["confirmed on", one.sync === "always" ? "disk" : "memory"],
      ],
    };
  }
  if (box.role === "dispatcher")
    return {
      meters: [],
      lines: [
        ["accepted", short(overview.dispatcher.accepted ?? 0)],
        ["refused", short(overview.dispatcher.refused ?? 0)],
      ],
    };
  return { lines: [], meters: [] };
}
