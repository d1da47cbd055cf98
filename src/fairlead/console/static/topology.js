// The drawing of a server: which process talks to which, and how full what lies between them is.
//
// Layers of boxes: clients, who takes them in, who holds them, who routes and stores, and the rest. Side by side where there is room, one
// below the other on a phone.
import { boxes } from "./boxes.js";
import { h } from "./dom.js";
import { percent, rate } from "./format.js";

const LINE = 17,
  HEAD = 50,
  PAD = 10,
  GAP = 18;
const SCALE = [0.78, 0.94, 1.04, 1.04, 0.84]; // of the layers' widths
const tall = (box) => HEAD + LINE * (box.lines.length + box.meters.length + box.spare.length) + PAD;

/** Where the boxes stand: {boxes with x, y, width, height; height of the whole; flat: layers are rows}. */
export function place(found, width) {
  const layers = [];
  for (const box of found) (layers[box.layer] ??= []).push(box);
  const used = layers.filter(Boolean);
  const flat = width < 760;
  if (flat) {
    let y = 4;
    const wide = Math.floor((width - GAP - 4) / 2);
    for (const layer of used) {
      for (let i = 0; i < layer.length; i += 2) {
        const row = layer.slice(i, i + 2);
        const height = Math.max(...row.map(tall));
        row.forEach((box, j) =>
          Object.assign(box, {
            x: row.length === 1 ? (width - wide) / 2 : 2 + j * (wide + GAP),
            y,
            width: wide,
            height,
          }),
        );
        y += height + GAP + 12;
      }
    }
    return { flat, boxes: found, height: y - 12 };
  }
  const scale = used.map((layer) => SCALE[layer[0].layer]);
  const units = scale.reduce((sum, one) => sum + one, 0);
  const wide = Math.min(200, (width - 44 * (used.length - 1) - 4) / units);
  const between = Math.min(90, (width - 4 - wide * units) / Math.max(1, used.length - 1));
  const start = (width - wide * units - between * (used.length - 1)) / 2;
  const heights = used.map((layer) => layer.reduce((sum, box) => sum + tall(box) + GAP, -GAP));
  const whole = Math.max(...heights);
  let x = start;
  used.forEach((layer, i) => {
    // Who takes clients in stands above and below, so that the lines of those who are in have the middle.
    const spread = layer[0].layer === 1 && layer.length > 1 ? (whole - heights[i]) / (layer.length - 1) : 0;
    let y = 4 + (layer[0].layer === 1 ? 0 : (whole - heights[i]) / 2);
    for (const box of layer) {
      Object.assign(box, { x, y, width: wide * scale[i], height: tall(box) });
      y += box.height + GAP + (box === layer[0] ? spread * (layer.length - 1) : 0);
    }
    x += wide * scale[i] + between;
  });
  return { flat, boxes: found, height: whole + 8 };
}

/**
 * The lines: each with the path it takes. They leave and reach a box at places of their own, in the order of where they go, so
 * that they cross as little as can be.
 */
export function lines(talks, named, flat) {
  const ends = new Map(); // box and side → ends there
  const found = [];
  for (const talk of talks) {
    const [a, b] = [named.get(talk.source), named.get(talk.target)];
    if (!a || !b || a === b) continue;
    const [first, second] = (flat ? a.y <= b.y : a.x < b.x || (a.x === b.x && a.y <= b.y)) ? [a, b] : [b, a];
    const stacked = !flat && first.x === second.x;
    const line = { talk, stacked, ends: [] };
    for (const [box, side, other] of [
      [first, flat || stacked ? "below" : "right", second],
      [second, flat || stacked ? "above" : "left", first],
    ]) {
      const key = `${box.name}\n${side}`;
      const end = { box, side, other };
      line.ends.push(end);
      ends.set(key, [...(ends.get(key) ?? []), end]);
    }
    found.push(line);
  }
  for (const at of ends.values()) {
    const along = (end) =>
      end.side === "left" || end.side === "right"
        ? end.other.y + end.other.height / 2
        : end.other.x + end.other.width / 2;
    at.sort((p, q) => along(p) - along(q));
    at.forEach((end, i) => {
      end.share = 0.25 + (0.5 * (i + 1)) / (at.length + 1);
    });
  }
  return found.map(({ talk, stacked, ends: [p, q] }) => ({ talk, d: curve(point(p), point(q), flat || stacked) }));
}

function point({ box, side, share }) {
  if (side === "left" || side === "right")
    return [side === "left" ? box.x : box.x + box.width, box.y + box.height * share];
  return [box.x + box.width * share, side === "above" ? box.y : box.y + box.height];
}

function curve([x1, y1], [x2, y2], upright) {
  if (upright) {
    const bend = Math.max(10, (y2 - y1) / 2);
    return `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
  }
  const bend = (x2 - x1) / 2;
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}

const STATE = { active: "ok", serving: "ok", loading: "warn", stopping: "warn", parked: "warn", none: "bad" };

/** The whole drawing; `pick(box)` is called when somebody chooses a box, `picked` is its name. */
export function drawing(overview, changes, width, picked, pick) {
  const { boxes: placed, height, flat } = place(boxes(overview, changes), width);
  const named = new Map(placed.map((box) => [box.name, box]));
  const talks = [...overview.talks];
  for (const box of placed)
    if (box.role === "manager")
      talks.unshift({
        source: "clients",
        target: box.name,
        by: "traffic",
        rate: managerRate(overview, box.index),
        fill: null,
      });
  if (named.has("dispatcher"))
    talks.unshift({ source: "clients", target: "dispatcher", by: "accept", rate: null, fill: null });
  return h(
    "svg.topology",
    {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "group",
      "aria-label": "Processes, and who talks to whom",
    },
    lines(talks, named, flat).map(({ talk, d }) => {
      const busy = talk.rate > 0;
      return h(
        "path.talk",
        {
          key: `${talk.source}>${talk.target}:${talk.by}`,
          d,
          class: `${talk.by} ${busy ? "busy" : ""} ${talk.fill > 0.9 ? "bad" : talk.fill > 0.7 ? "warn" : ""}`,
          style: { "--w": `${(1 + Math.min(3, Math.log10(1 + (talk.rate ?? 0)) * 0.75)).toFixed(2)}px` },
        },
        h(
          "title",
          null,
          `${talk.source} – ${talk.target}: ${talk.by}${talk.rate === null || talk.rate === undefined ? "" : `, ${rate(talk.rate)} /s`}${talk.fill === null || talk.fill === undefined ? "" : `, ring ${percent(talk.fill)} full`}`,
        ),
      );
    }),
    placed.map((box) => drawBox(box, picked === box.name, pick)),
  );
}

function managerRate(overview, index) {
  const one = overview.managers.find((manager) => manager.index === index);
  return one ? (one.messages_in ?? 0) + (one.messages_out ?? 0) : null;
}

function drawBox(box, picked, pick) {
  const { x, y, width, height, main } = box;
  const choose = () => pick(box);
  const state = main?.state ?? (box.role === "clients" || box.role === "elsewhere" ? "" : "none");
  const room = Math.floor((width - 34) / 7.9);
  const title = box.name.length > room ? `${box.name.slice(0, room - 1)}…` : box.name;
  let line = y + HEAD + 10;
  const next = () => {
    line += LINE;
    return line - LINE;
  };
  return h(
    "g.box",
    {
      key: box.name,
      class: `${box.role} ${box.fresh ? "fresh" : ""} ${picked ? "picked" : ""} ${state === "none" ? "none" : ""}`,
      tabindex: "0",
      role: "button",
      "aria-pressed": String(picked),
      "data-name": box.name,
      "data-pid": main?.pid,
      "aria-label": `${box.name}${main ? `, process ${main.pid}, ${main.state}, version ${main.version}` : ""}. ${box.lines.map((one) => one.join(" ")).join(", ")}`,
      onclick: choose,
      onkeydown: (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          choose();
        }
      },
    },
    h("rect.frame-box", { x, y, width, height, rx: 8 }),
    state ? h("circle.state", { cx: x + 15, cy: y + 17, r: 4, class: STATE[state] ?? "warn" }) : null,
    h("text.title", { x: x + (state ? 26 : 12), y: y + 21.5 }, title),
    h(
      "text.small",
      { x: x + 12, y: y + 39 },
      main
        ? [`pid ${main.pid}`, main.version, STATE[main.state] === "ok" ? "" : main.state].filter(Boolean).join(" · ")
        : box.role === "clients"
          ? "programs"
          : state === "none"
            ? "no process"
            : "elsewhere",
    ),
    box.lines.map(([name, value]) => {
      const at = next();
      return h(
        "g",
        { key: `l${name}` },
        h("text.label", { x: x + 12, y: at }, name),
        h("text.figure", { x: x + width - 12, y: at }, value),
      );
    }),
    box.meters.map(([name, share, text]) => {
      const at = next();
      const from = x + 54,
        long = Math.max(10, width - 54 - 12 - 40);
      return h(
        "g",
        { key: `m${name}` },
        h("text.label", { x: x + 12, y: at }, name),
        h("rect.trough", { x: from, y: at - 7, width: long, height: 6, rx: 3 }),
        h("rect.level", {
          x: from,
          y: at - 7,
          width: share > 0 ? Math.max(2, long * Math.min(1, share)) : 0,
          height: 6,
          rx: 3,
          class: share > 0.9 ? "bad" : share > 0.7 ? "warn" : "",
        }),
        h("text.figure", { x: x + width - 12, y: at }, share > 0 && share < 0.01 ? "<1 %" : percent(share)),
        h("title", null, text),
      );
    }),
    box.spare.map((one) => {
      const at = next();
      return h(
        "g.spare",
        { key: `p${one.pid}`, class: one.state },
        h("text.label", { x: x + 12, y: at }, one.state),
        h("text.figure", { x: x + width - 12, y: at }, `pid ${one.pid}`),
      );
    }),
  );
}
