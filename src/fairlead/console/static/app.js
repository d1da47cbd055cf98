// The frame around the views: where we are, who we are, and whether the line to the server stands.

import { announce, drawWith, h, redraw, render } from "./dom.js";
import { tell } from "./dialogs.js";
import { clock, short, span } from "./format.js";
import { admitted, isLost, live, mayLookOn, post, session, whoAmI } from "./net.js";
import { login } from "./login.js";
import { VIEWS, find } from "./routes.js";

const app = document.getElementById("app");
let current = null; // {route, parameters, view}
let menu = false;

function navigate() {
  if (!location.hash.startsWith("#/")) {
    if (current) return;
    history.replaceState(null, "", session.me && !session.me.admin ? "#/destinations" : "#/topology");
  }
  const [route, parameters] = find(location.hash);
  current?.view.leave?.();
  current = { route, parameters, view: route.open(...parameters) };
  menu = false;
  document.title = `${current.view.title} – Fairlead console`;
  announce(current.view.title);
  window.scrollTo(0, 0);
  redraw();
}

function go(event) {
  // Within the page, focus follows to what was opened, as it would on a new page.
  navigate();
  if (event)
    requestAnimationFrame(() =>
      requestAnimationFrame(() => document.getElementById("main")?.focus({ preventScroll: true })),
    );
}

async function logOut() {
  try {
    await post("logout");
  } catch (fault) {
    tell(fault.message, "bad");
  }
  await whoAmI();
}

/** Nobody is logged in: nothing of what the last one saw stays. */
function shut() {
  live.close();
  live.data = {};
  live.state = "connecting";
  current?.view.leave?.();
  if (current) history.replaceState(null, "", location.pathname);
  current = null;
}

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("fairlead-theme", root.dataset.theme);
  } catch {
    /* it lasts as long as the page */
  }
  redraw();
}

function mark() {
  return h(
    "svg",
    { viewBox: "0 0 32 32", "aria-hidden": "true" },
    h("rect.mark-ground", { width: 32, height: 32, rx: 7 }),
    h("path.mark-bow", { d: "M9 24V14a7 7 0 0 1 14 0v10" }),
    h("circle.mark-eye", { cx: 16, cy: 14, r: 2.6 }),
  );
}

function lineState() {
  const age = live.heardMs ? (Date.now() - live.heardMs) / 1000 : 0;
  if (!mayLookOn())
    return h(
      "span.line-state",
      { class: isLost() ? "lost" : "live", "data-line": isLost() ? "lost" : "live" },
      h("i"),
      isLost() ? "reconnecting" : "connected",
    );
  const [kind, text] =
    live.state === "live"
      ? ["live", "live"]
      : live.state === "lost"
        ? ["lost", "reconnecting"]
        : ["waiting", "connecting"];
  return h(
    "span.line-state",
    { class: kind, "data-line": live.state, title: live.state === "live" ? `Last heard ${span(age)} ago` : "" },
    h("i"),
    text,
  );
}

function side() {
  const badges = {
    destinations: live.data.destinations?.total,
    dead: (live.data.destinations?.destinations ?? [])
      .filter((one) => one.name === "_DMQ" || one.name.startsWith("_DMQ."))
      .reduce((sum, one) => sum + one.depth, 0),
    connections: live.data.overview?.totals.connections,
  };
  const here = current.route.name;
  const offered = VIEWS.filter((one) => session.me.admin || one.everybody);
  const groups = [...new Set(offered.map((one) => one.group))];
  return h(
    "div.side",
    { class: menu ? "open" : "", id: "menu" },
    h("a.brand", { href: "#/topology" }, mark(), "Fairlead"),
    h(
      "nav",
      { "aria-label": "Views" },
      groups.map((group) => [
        h("h3", { key: group }, group),
        offered
          .filter((one) => one.group === group)
          .map((one) =>
            h(
              "a",
              {
                key: one.name,
                href: `#/${one.name}`,
                onclick: () => {
                  menu = false;
                  redraw();
                },
                "aria-current": here === one.name ? "page" : null,
              },
              one.text,
              badges[one.name]
                ? h("span.badge", { class: one.name === "dead" ? "bad" : "" }, short(badges[one.name]))
                : null,
            ),
          ),
      ]),
    ),
    h(
      "footer",
      null,
      h(
        "div.row",
        null,
        lineState(),
        h(
          "button.small",
          { type: "button", onclick: theme, title: "Light or dark", "aria-label": "Switch between light and dark" },
          "◐",
        ),
      ),
      session.me.open
        ? h("span.muted", null, "Open on this host: no users are set up.")
        : h(
            "div.row",
            null,
            h(
              "span",
              null,
              "You are ",
              h("strong", null, session.me.user),
              session.me.admin ? "" : ", without admin rights",
            ),
            h("button.small", { type: "button", onclick: logOut }, "Log out"),
          ),
      h("span.muted", null, `Version ${session.me.version}${session.me.node ? `, node ${session.me.node}` : ""}`),
    ),
  );
}

function banner() {
  if (isLost()) {
    const known = live.data.overview?.now_ms;
    return h(
      "div.banner",
      { role: "alert" },
      `The connection to the server is lost; trying again.${known ? ` What you see is from ${clock(known)}.` : ""}`,
    );
  }
  const worst = live.data.overview?.alarms?.find((one) => one.level === "error");
  return worst ? h("div.banner", { role: "alert" }, worst.text) : null;
}

/** A view that cannot be drawn says so, and leaves the menu to the operator. */
function seen(view) {
  try {
    return view.view();
  } catch (fault) {
    console.error(fault);
    return h(
      "div.card.fault-card",
      { role: "alert" },
      h("p.fault", null, `This view cannot be shown: ${fault.message}`),
    );
  }
}

function draw() {
  if (!session.asked) {
    return render(app, h("div.login", null, h("p.muted", { role: "status" }, "Looking for the server …")));
  }
  if (!admitted()) {
    shut();
    return render(app, login(mark));
  }
  if (!current) navigate();
  if (mayLookOn() && !live.source && !live.timer) live.open();
  const { view } = current;
  render(
    app,
    h(
      "div.frame",
      { class: isLost() ? "stale" : "" },
      h(
        "header.top",
        null,
        h("a.brand", { href: "#/topology" }, mark(), "Fairlead"),
        lineState(),
        h(
          "button",
          {
            type: "button",
            "aria-expanded": String(menu),
            "aria-controls": "menu",
            onclick: () => {
              menu = !menu;
              redraw();
            },
          },
          "Menu",
        ),
      ),
      side(),
      h(
        "div",
        null,
        banner(),
        h("main", { id: "main", tabindex: "-1" }, h("div.page.data", { key: location.hash }, seen(view))),
      ),
    ),
  );
}

drawWith(draw);
window.addEventListener("hashchange", go);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main")?.focus();
});
document.addEventListener("keydown", (event) => {
  if (
    event.key !== "/" ||
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)
  )
    return;
  const search = document.querySelector("main input[type=search]");
  if (search) {
    event.preventDefault();
    search.focus();
  }
});
live.addEventListener("back", () => {
  for (const one of current?.view.resources ?? []) one.load();
});
setInterval(() => {
  // Also while the stream is lost: the server may answer, and only have too many that look on.
  if (admitted() && !document.hidden) for (const one of current?.view.resources ?? []) one.tick();
}, 500);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

async function begin() {
  redraw();
  while (!session.asked) {
    await whoAmI();
    if (!session.asked) await new Promise((wake) => setTimeout(wake, 1000));
  }
}
begin();
