// Line charts: several series over time, one unit, a cursor that follows the pointer or the arrow keys.

import { h, redraw } from "./dom.js";
import { clock } from "./format.js";

const TOP = 8,
  BOTTOM = 20,
  LEFT = 62,
  RIGHT = 8;

/** Round steps below `top`: [0, 20, 40, …]; at most `wanted` + 1 of them. */
export function ticks(top, wanted = 4, binary = false) {
  if (!(top > 0)) return [0, 1];
  const raw = top / wanted;
  if (binary && raw > 1) {
    const step = 2 ** Math.ceil(Math.log2(raw));
    return Array.from({ length: Math.ceil(top / step) + 1 }, (_, i) => i * step);
  }
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999);
  const found = [];
  for (let at = 0; at < top + step * 0.999; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

/** Where the clock's labels go: round minutes or hours between the two. */
export function timeTicks(from, to, wanted = 6) {
  const steps = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400].map((s) => s * 1000);
  const step = steps.find((one) => (to - from) / one <= wanted) ?? steps.at(-1);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}

/** Points as the path of a line; a hole (null) lifts the pen. */
export function path(times, values, x, y) {
  let text = "";
  let down = false;
  values.forEach((value, i) => {
    if (value === null || value === undefined) {
      down = false;
      return;
    }
    text += `${down ? "L" : "M"}${x(times[i]).toFixed(1)} ${y(value).toFixed(1)}`;
    down = true;
  });
  return text;
}

/** The index of the point nearest to a time. */
export function nearest(times, at) {
  let low = 0,
    high = times.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (times[middle] < at) low = middle;
    else high = middle;
  }
  return at - times[low] < times[high] - at ? low : high;
}

/**
 * A chart that keeps its own cursor and its hidden series. view({title, times (ms), series: [{name, values, colour}], format,
 * from, to, note, points}) gives the node; `points` draws each value as a dot, for what happens seldom.
 */
export class Chart {
  constructor({ height = 190 } = {}) {
    this.width = 560;
    this.height = height;
    this.cursor = null;
    this.hidden = new Set();
    this.watcher = null;
  }

  mounted(node) {
    const measure = () => {
      const width = Math.round(node.clientWidth);
      if (width && width !== this.width) {
        this.width = width;
        redraw();
      }
    };
    this.watcher = new ResizeObserver(measure);
    this.watcher.observe(node);
    measure();
  }

  view({
    title,
    times,
    series,
    format,
    from,
    to,
    points = false,
    binary = false,
    note = "",
    empty = "Nothing measured yet.",
  }) {
    const { width, height } = this;
    const shown = series
      .map((one, i) => ({ ...one, colour: one.colour ?? (i % 8) + 1 }))
      .filter((one) => !this.hidden.has(one.name));
    const begin = from ?? times[0] ?? 0;
    const end = to ?? times.at(-1) ?? 1;
    const top = Math.max(0, ...shown.flatMap((one) => one.values.filter((v) => v !== null && v !== undefined)));
    const marks = ticks(top, height < 150 ? 2 : 4, binary);
    const x = (at) => LEFT + (width - LEFT - RIGHT) * (end > begin ? (at - begin) / (end - begin) : 0);
    const y = (value) => height - BOTTOM - (height - TOP - BOTTOM) * (value / marks.at(-1));
    const at = this.cursor === null || !times.length ? null : Math.min(this.cursor, times.length - 1);
    const move = (event) => {
      if (!times.length) return;
      const box = event.currentTarget.getBoundingClientRect();
      const share = ((event.clientX - box.left) * (width / box.width) - LEFT) / (width - LEFT - RIGHT);
      this.cursor = nearest(times, begin + Math.min(1, Math.max(0, share)) * (end - begin));
      redraw();
    };
    const leave = () => {
      this.cursor = null;
      redraw();
    };
    const key = (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") return leave();
      if (!step || !times.length) return;
      event.preventDefault();
      this.cursor = Math.min(times.length - 1, Math.max(0, (this.cursor ?? times.length) + step));
      redraw();
    };
    const latest = (one) => one.values.findLast((v) => v !== null && v !== undefined);
    const summary = `${title}: ` + (shown.map((one) => `${one.name} ${format(latest(one))}`).join(", ") || empty);
    return h(
      "figure.chart",
      null,
      h("figcaption", null, h("span.chart-title", null, title), note ? h("span.chart-note", null, note) : null),
      h(
        "div.chart-area",
        {
          onmount: (node) => this.mounted(node),
          tabindex: "0",
          role: "img",
          "aria-label": summary,
          onpointermove: move,
          onpointerdown: move,
          onpointerleave: leave,
          onkeydown: key,
          onblur: leave,
        },
        h(
          "svg",
          { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" },
          marks.map((mark) =>
            h(
              "g",
              { key: `y${mark}` },
              h("line.grid", { x1: LEFT, x2: width - RIGHT, y1: y(mark), y2: y(mark) }),
              h("text.axis.end", { x: LEFT - 6, y: y(mark) + 4 }, mark === 0 ? "0" : format(mark)),
            ),
          ),
          timeTicks(begin, end, Math.max(2, Math.floor(width / 110))).map((mark) =>
            h(
              "text.axis.middle",
              { key: `x${mark}`, x: x(mark), y: height - 4 },
              clock(mark).slice(0, end - begin > 600000 ? -3 : undefined),
            ),
          ),
          shown.map((one) =>
            h("path.line", { key: one.name, class: `c${one.colour}`, d: path(times, one.values, x, y) }),
          ),
          points
            ? shown
                .flatMap((one) =>
                  one.values.map((value, i) =>
                    value === null || value === undefined
                      ? null
                      : h("circle.dot", {
                          key: `p${one.name}${times[i]}`,
                          class: `c${one.colour}`,
                          cx: x(times[i]),
                          cy: y(value),
                          r: 3.5,
                        }),
                  ),
                )
                .filter(Boolean)
            : null,
          at === null ? null : h("line.cursor", { x1: x(times[at]), x2: x(times[at]), y1: TOP, y2: height - BOTTOM }),
          at === null
            ? null
            : shown.map((one) =>
                one.values[at] === null || one.values[at] === undefined
                  ? null
                  : h("circle.dot", {
                      key: `d${one.name}`,
                      class: `c${one.colour}`,
                      cx: x(times[at]),
                      cy: y(one.values[at]),
                      r: 3,
                    }),
              ),
        ),
        times.length ? null : h("p.chart-empty", null, empty),
        at === null
          ? null
          : h(
              "div.tip",
              { class: x(times[at]) > width / 2 ? "left" : "", style: { "--x": `${(100 * x(times[at])) / width}%` } },
              h("div.tip-time", null, clock(times[at])),
              shown.map((one) =>
                h(
                  "div.tip-row",
                  null,
                  h("i", { class: `c${one.colour}` }),
                  h("span", null, one.name),
                  h("b", null, format(one.values[at])),
                ),
              ),
            ),
      ),
      series.length > 1
        ? h(
            "div.legend",
            null,
            series.map((one, i) =>
              h(
                "button.plain",
                {
                  key: one.name,
                  type: "button",
                  "aria-pressed": String(!this.hidden.has(one.name)),
                  title: "Show or hide this line",
                  onclick: () => {
                    if (!this.hidden.delete(one.name)) this.hidden.add(one.name);
                    redraw();
                  },
                },
                h("i", { class: `c${one.colour ?? (i % 8) + 1}` }),
                one.name,
              ),
            ),
          )
        : null,
    );
  }
}

/** A line without axes, for table rows. */
export function spark(values, colour = 1, width = 84, height = 20) {
  const top = Math.max(1e-9, ...values.filter((v) => v !== null && v !== undefined));
  const x = (i) => (values.length > 1 ? (i * width) / (values.length - 1) : 0);
  const y = (v) => height - 2 - (height - 4) * (v / top);
  return h(
    "svg.spark",
    { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    h("path.line", {
      class: `c${colour}`,
      d: path(
        values.map((_, i) => i),
        values,
        x,
        y,
      ),
    }),
  );
}
