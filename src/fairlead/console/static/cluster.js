// The drawing of a cluster: nodes by kind, the groups each of them keeps, who leads and who follows, and how far behind.

import { h } from "./dom.js";
import { count } from "./format.js";

const LINE = 18,
  HEAD = 46,
  PAD = 10,
  GAP = 22;
const KINDS = { cm: "client manager", mm: "message manager" };
const ROWS = [["client-manager", "cm"], ["message-manager", "mm"], ["witness"]];

/** Nodes with what they keep, row by row: client managers above, message managers below, witnesses last. */
export function nodesOf(cluster, changes) {
  const found = new Map(cluster.nodes.map((one) => [one.node, { ...one, copies: [] }]));
  const lost = (name, known) =>
    found.set(name, { kind: "mm", ...known, node: name, pid: null, missing: true, copies: [] });
  for (const name of cluster.missing) lost(name);
  for (const [name, one] of changes.nodes) if (!found.has(name)) lost(name, one);
  for (const group of cluster.groups) {
    for (const member of group.members) {
      if (!found.has(member.node)) lost(member.node);
      found.get(member.node).copies.push({ group: group.group, ...member, lead: member.node === group.primary });
    }
  }
  const row = (node) => {
    const at = ROWS.findIndex((kinds) => kinds.includes(node.kind));
    return at < 0 ? 1 : at;
  };
  return [...found.values()]
    .map((node) => ({ ...node, row: row(node) }))
    .sort((a, b) => a.row - b.row || a.node.localeCompare(b.node, "en", { numeric: true }));
}

export function place(nodes, width) {
  const most = Math.max(1, Math.floor((width + GAP) / (170 + GAP)));
  let y = 4;
  for (const row of [0, 1, 2]) {
    const all = nodes.filter((node) => node.row === row);
    for (let i = 0; i < all.length; i += most) {
      const line = all.slice(i, i + most);
      const wide = Math.min(230, (width - GAP * (line.length - 1) - 4) / line.length);
      const height = HEAD + PAD + LINE * Math.max(0, ...line.map((node) => node.copies.length));
      const start = (width - line.length * wide - GAP * (line.length - 1)) / 2;
      line.forEach((node, j) => Object.assign(node, { x: start + j * (wide + GAP), y, width: wide, height }));
      y += height + 44;
    }
  }
  return y - 34;
}

export function clusterDrawing(cluster, changes, width) {
  const nodes = nodesOf(cluster, changes);
  const height = place(nodes, width);
  const named = new Map(nodes.map((node) => [node.node, node]));
  const managers = nodes.filter((node) => node.row === 0);
  const copies = cluster.groups.flatMap((group, at) =>
    group.members
      .filter((member) => group.primary && member.node !== group.primary && named.has(group.primary))
      .map((member) => ({
        group: group.group,
        from: named.get(group.primary),
        to: named.get(member.node),
        sync: member.in_sync,
        colour: (at % 8) + 1,
      })),
  );
  return h(
    "svg.topology",
    { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": describe(cluster) },
    managers.flatMap((from) =>
      nodes
        .filter((node) => node.row === 1)
        .map((to) =>
          h("path.talk.bus", {
            key: `${from.node}-${to.node}`,
            class: to.missing || from.missing ? "cut" : "",
            d: `M${from.x + from.width / 2} ${from.y + from.height}L${to.x + to.width / 2} ${to.y}`,
          }),
        ),
    ),
    copies.map((one, at) => {
      const low = Math.max(one.from.y + one.from.height, one.to.y + one.to.height);
      const drop = 14 + (at % 3) * 7;
      return h(
        "path.talk.copy",
        {
          key: `c${one.group}${one.to.node}`,
          class: `c${one.colour} ${one.sync ? "" : "behind"}`,
          d: `M${middle(one.from, one.colour)} ${one.from.y + one.from.height}C${middle(one.from, one.colour)} ${low + drop} ${middle(one.to, one.colour)} ${low + drop} ${middle(one.to, one.colour)} ${one.to.y + one.to.height}`,
        },
        h(
          "title",
          null,
          `Group ${one.group}: ${one.from.node} → ${one.to.node}, ${one.sync ? "in sync" : "not in sync"}`,
        ),
      );
    }),
    nodes.map((node) =>
      h(
        "g.box",
        { key: node.node, class: `node ${node.missing ? "none" : ""}`, "data-name": node.node },
        h("rect.frame-box", { x: node.x, y: node.y, width: node.width, height: node.height, rx: 8 }),
        h("circle.state", { cx: node.x + 15, cy: node.y + 17, r: 4, class: node.missing ? "bad" : "ok" }),
        h("text.title", { x: node.x + 26, y: node.y + 21.5 }, node.node),
        h(
          "text.small",
          { x: node.x + 12, y: node.y + 39 },
          node.missing
            ? "does not answer"
            : [KINDS[node.kind] ?? node.kind, node.pid ? `pid ${node.pid}` : ""].filter(Boolean).join(" · "),
        ),
        node.copies.map((copy, i) => {
          const at = node.y + HEAD + 10 + i * LINE;
          return h(
            "g",
            { key: copy.group, class: changes.moved.has(copy.group) ? "copy-line fresh" : "copy-line" },
            h("text.label", { x: node.x + 12, y: at, class: copy.lead ? "lead" : "" }, `${copy.group} ${copy.role}`),
            h(
              "text.figure",
              { x: node.x + node.width - 12, y: at, class: copy.in_sync ? "" : "behind" },
              `epoch ${copy.epoch ?? "–"}${copy.lead ? "" : copy.in_sync ? ", in sync" : `, ${count(copy.lag)} behind`}`,
            ),
          );
        }),
      ),
    ),
  );
}

const middle = (box, colour) => box.x + box.width / 2 + (colour - 2) * 9;

function describe(cluster) {
  return (
    cluster.groups
      .map(
        (group) =>
          `Group ${group.group}: ${group.primary ? `${group.primary} leads at epoch ${group.epoch}` : "nobody leads"}`,
      )
      .join(". ") || "No groups yet"
  );
}
