// Questions to the server and its live stream. A lost line is noticed, told, and mended without anybody's help.

import { announce, redraw } from "./dom.js";

const BASE = new URL("api/v1/", document.baseURI);
const SILENCE_MS = 6000; // the stream says something each second; after this it is called lost
const RETRY_MS = [500, 1000, 2000, 4000, 5000];

/** What the server answered instead of doing it: a sentence for the operator, and its code. */
export class Refused extends Error {
  constructor(status, code, text) {
    super(text);
    this.status = status;
    this.code = code;
  }
}

/** Who is asking, as GET /me says; null until it is known. */
export const session = { me: null, asked: false };

/** Did the server answer the last question? */
export const line = { lostMs: 0 };

async function call(method, path, body) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET") headers["X-Fairlead-CSRF"] = session.me?.csrf || "1";
  let answer;
  try {
    answer = await fetch(new URL(path, BASE), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      redirect: "error",
      signal: AbortSignal.timeout(60000),
    });
  } catch (fault) {
    const slow = fault.name === "TimeoutError";
    line.lostMs ||= Date.now();
    redraw();
    throw new Refused(
      0,
      "no-answer",
      slow ? "The server did not answer in a minute." : "The server cannot be reached just now.",
    );
  }
  line.lostMs = 0;
  const json = await answer.json().catch(() => null);
  if (answer.ok) return json;
  if (answer.status === 401 && session.me?.logged_in && path !== "login") whoAmI(); // the session has ended: the login page comes
  throw new Refused(
    answer.status,
    json?.code ?? "",
    json?.detail || json?.title || `The server answered ${answer.status}.`,
  );
}

export const get = (path) => call("GET", path);
export const post = (path, body = {}) => call("POST", path, body);
export const remove = (path) => call("DELETE", path);

/** path("destinations", name, "messages", {limit: 50}): encoded, whatever the name is made of. */
export function path(...parts) {
  const query = typeof parts.at(-1) === "object" ? parts.pop() : {};
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = parts.map(encodeURIComponent).join("/");
  return given.length ? `${text}?${new URLSearchParams(given)}` : text;
}

export async function whoAmI() {
  try {
    session.me = await get("me");
    session.asked = true;
  } catch (fault) {
    if (fault.status !== 0 && fault.status !== 503) session.asked = true;
  }
  redraw();
  return session.me;
}

/** May the page show anything yet? */
export const admitted = () => Boolean(session.me && (session.me.open || session.me.logged_in));

/** The live stream tells of the whole server, so it is for administrators; others see what is asked for. */
export const mayLookOn = () => admitted() && session.me.admin;

/** Can nothing new be had just now? */
export const isLost = () => (mayLookOn() ? live.state === "lost" : line.lostMs > 0);

/** An answer that is asked for again every few seconds while somebody looks; what was known stays when it cannot be had. */
export class Resource {
  constructor(where, { every = 5 } = {}) {
    this.where = where; // a function that gives the path, so that filters count
    this.every = every;
    this.data = null;
    this.fault = null;
    this.at = 0;
    this.due = 0;
    this.turn = 0;
  }

  async load() {
    const turn = ++this.turn;
    this.due = performance.now() + this.every * 1000;
    try {
      const data = await get(this.where());
      if (turn !== this.turn) return; // a later question was answered first
      this.data = data;
      this.fault = null;
      this.at = Date.now();
    } catch (fault) {
      if (turn !== this.turn) return;
      this.fault = fault;
    }
    redraw();
  }

  tick() {
    if (performance.now() >= this.due) this.load();
  }
}

/** The live stream: `state` is connecting, live or lost; `data` has the newest of each kind. */
class Live extends EventTarget {
  constructor() {
    super();
    this.state = "connecting";
    this.data = {};
    this.heardMs = 0;
    this.lostMs = 0;
    this.source = null;
    this.tries = 0;
    this.timer = null;
  }

  open() {
    this.close();
    const source = new EventSource(new URL("live?topics=overview,destinations,connections,event,history", BASE));
    this.source = source;
    for (const kind of ["overview", "destinations", "connections", "event", "history"]) {
      source.addEventListener(kind, (event) => this.heard(kind, event));
    }
    source.addEventListener("error", () => {
      this.lost();
      // The browser tries again by itself after a cut, but not after an answer it did not like, such as 503.
      if (source.readyState === EventSource.CLOSED) this.again();
    });
    clearInterval(this.watch);
    this.watch = setInterval(() => {
      if (this.heardMs && Date.now() - this.heardMs > SILENCE_MS) {
        this.lost();
        this.again();
      }
      redraw(); // ages on the page go on
    }, 1000);
  }

  close() {
    clearTimeout(this.timer);
    this.timer = null;
    this.source?.close();
    this.source = null;
  }

  again() {
    if (this.timer) return;
    this.source?.close();
    this.heardMs = 0;
    const wait = RETRY_MS[Math.min(this.tries++, RETRY_MS.length - 1)];
    this.timer = setTimeout(async () => {
      this.timer = null;
      await whoAmI(); // a session that ended shows the login page instead of a line that never comes back
      if (mayLookOn()) {
        this.open();
        get("overview").then(
          (found) => this.keep("overview", found),
          () => {},
        ); // who answers is seen without a stream, too
      } else if (line.lostMs || !session.asked) this.again();
    }, wait);
  }

  lost() {
    if (this.state !== "lost") {
      this.lostMs = Date.now();
      if (this.state === "live") announce("The connection to the server is lost.");
      this.state = "lost";
    }
    redraw();
  }

  heard(kind, event) {
    let data;
    try {
      data = JSON.parse(event.data);
    } catch {
      return;
    }
    if (this.state === "lost") {
      announce("The connection to the server is back.");
      this.dispatchEvent(new CustomEvent("back"));
    }
    this.state = "live";
    this.heardMs = Date.now();
    this.tries = 0;
    this.keep(kind, data);
  }

  keep(kind, data) {
    this.data[kind] = data;
    this.dispatchEvent(new CustomEvent(kind, { detail: data }));
    redraw();
  }
}

export const live = new Live();
