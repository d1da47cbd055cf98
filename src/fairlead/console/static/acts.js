// What an operator may do to a destination. Each asks first and says exactly what will happen; then the outcome, or the server's sentence.

import { ask, tell } from "./dialogs.js";
import { count, many } from "./format.js";
import { live, path, post, remove } from "./net.js";

/** Of one destination; `browsing` knows which messages are chosen and by which selector, `refresh` looks again afterwards. */
export class Acts {
  constructor(name, browsing, refresh) {
    this.name = name;
    this.browsing = browsing;
    this.refresh = refresh;
  }

  /** Do it, say how it went, look again. */
  async act(what, said) {
    try {
      tell(said(await what()));
      this.browsing.picked.clear();
    } catch (fault) {
      tell(fault.message, "bad");
    }
    await this.refresh();
  }

  async send() {
    const asked = await ask({
      title: `Send a test message to ${this.name}`,
      confirm: "Send it",
      text: "It is stored and delivered like any other message: whoever consumes from here gets it.",
      fields: [
        { name: "body", label: "Body", kind: "area", value: "" },
        {
          name: "properties",
          label: "Properties",
          placeholder: "colour=green size=3",
          hint: "name=value, with spaces between; numbers, true and false are taken as such",
        },
        { name: "key", label: "Key" },
        { name: "delay", label: "Delay in seconds", kind: "number" },
        { name: "count", label: "How many", kind: "number", value: "1" },
      ],
      check: (values) =>
        properties(values.properties) === null
          ? "Properties are written name=value."
          : !(Number(values.count) >= 1 && Number(values.count) <= 1000)
            ? "Between 1 and 1000 of them."
            : "",
    });
    if (!asked) return;
    const message = {
      body: asked.body,
      properties: properties(asked.properties),
      key: asked.key,
      count: Number(asked.count),
    };
    if (Number(asked.delay) > 0) message.delay_ms = Math.round(Number(asked.delay) * 1000);
    await this.act(
      () => post(path("destinations", this.name, "send"), message),
      (done) => `${many(done.messages, "message")} stored in ${this.name}.`,
    );
  }

  async pause(paused) {
    const sure = await ask(
      paused
        ? {
            title: `Resume ${this.name}?`,
            confirm: "Resume",
            text: "Its messages are delivered again, beginning with the oldest.",
          }
        : {
            title: `Pause ${this.name}?`,
            confirm: "Pause",
            text: "Nothing is delivered from it until it is resumed, after a restart of the server either. Sending goes on.",
          },
    );
    if (sure)
      await this.act(
        () => post(path("destinations", this.name, paused ? "resume" : "pause")),
        () => `${this.name} is ${paused ? "delivering again" : "paused"}.`,
      );
  }

  async purge(one) {
    const asked = await ask({
      title: `Purge ${this.name}?`,
      confirm: "Purge",
      danger: true,
      typed: this.name,
      text: `All ${many(one.depth, "waiting message")} are removed for good, or only those that the selector matches. What consumers hold just now (${count(one.locked)}) stays.`,
      fields: [
        {
          name: "selector",
          label: "Only what matches this selector",
          placeholder: "colour = 'green'",
          value: this.browsing.selector,
        },
      ],
    });
    if (asked)
      await this.act(
        () => post(path("destinations", this.name, "purge"), { selector: asked.selector }),
        (done) =>
          `${many(done.messages, "message")} removed from ${this.name}.${done.more ? " There are more: do it again." : ""}`,
      );
  }

  async move() {
    const orders = [...this.browsing.picked];
    const names = (live.data.destinations?.destinations ?? [])
      .filter((one) => one.name !== this.name && !one.own)
      .map((one) => one.name)
      .sort();
    const asked = await ask({
      title: orders.length
        ? `Move ${many(orders.length, "message")} out of ${this.name}`
        : `Move messages out of ${this.name}`,
      confirm: "See what would be moved",
      text: orders.length
        ? "Each goes to the other queue in one step: it is in exactly one of the two at any time."
        : "Up to 1,000 waiting messages go to the other queue, each in one step: all of them, or those that a selector matches.",
      fields: [
        { name: "to", label: "To", required: true, choices: names, hint: "the name of a queue or topic" },
        ...(orders.length
          ? []
          : [
              {
                name: "selector",
                label: "Only what matches this selector",
                placeholder: "colour = 'green'",
                value: this.browsing.selector,
              },
            ]),
      ],
      check: (values) => (values.to ? "" : "It needs the name of a queue."),
    });
    if (!asked) return;
    const wish = { to: asked.to, orders, selector: asked.selector ?? "" };
    let would;
    try {
      would = await post(path("destinations", this.name, "move"), { ...wish, dry_run: true });
    } catch (fault) {
      return tell(fault.message, "bad");
    }
    const sure = await ask({
      title: `Move ${many(would.messages, "message")} to ${asked.to}?`,
      confirm: would.messages ? "Move" : "Close",
      text: would.messages
        ? `${many(would.messages, "message")} of ${this.name} will go to ${asked.to}.`
        : "Nothing that waits matches, so nothing would be moved.",
    });
    if (sure && would.messages)
      await this.act(
        () => post(path("destinations", this.name, "move"), wish),
        (done) =>
          `${many(done.messages, "message")} moved to ${asked.to}.${done.more ? " There are more: do it again." : ""}`,
      );
  }

  async drop() {
    const orders = [...this.browsing.picked];
    const sure = await ask({
      title: `Remove ${many(orders.length, "message")}?`,
      confirm: "Remove",
      danger: true,
      text: `Removed for good from ${this.name}: number ${orders.slice(0, 12).join(", ")}${orders.length > 12 ? " …" : ""}.`,
    });
    if (!sure) return;
    await this.act(
      async () => {
        let messages = 0;
        for (const order of orders)
          messages += (await remove(path("destinations", this.name, "messages", order))).messages;
        return messages;
      },
      (messages) => `${many(messages, "message")} removed.`,
    );
  }

  async destroy(one) {
    const sure = await ask({
      title: `Delete the ${one.kind} ${this.name}?`,
      confirm: "Delete",
      danger: true,
      typed: this.name,
      text: `It is gone with its ${many(one.depth, "message")}. ${many(one.consumers, "consumer")} and all producers are told. This cannot be undone.`,
    });
    if (!sure) return;
    try {
      const done = await remove(path("destinations", this.name));
      tell(`${this.name} is deleted, with ${many(done.messages, "message")}.`);
      location.hash = "#/destinations";
    } catch (fault) {
      tell(fault.message, "bad");
    }
  }
}

/** "a=1 b=two" as values; null if it is not written so. */
export function properties(text) {
  const found = {};
  for (const part of text.trim().split(/\s+/).filter(Boolean)) {
    const [, name, value] = /^([^=]+)=(.*)$/.exec(part) ?? [];
    if (!name) return null;
    found[name] =
      value === "true"
        ? true
        : value === "false"
          ? false
          : value !== "" && !Number.isNaN(Number(value))
            ? Number(value)
            : value;
  }
  return found;
}
