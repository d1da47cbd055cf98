// Asking before something is changed, and saying how it went.

import { h, render } from "./dom.js";

let last = 0;

/**
 * Ask in a dialog. It says in `text` (a sentence, or nodes) exactly what will happen; `typed` has to be typed before the
 * button works; `fields` are filled in by the operator. Answers with the fields' values, or null if nothing is to happen.
 */
export function ask({ title, text, confirm, typed = null, danger = false, fields = [], check = null }) {
  return new Promise((resolve) => {
    const host = document.createElement("div");
    document.getElementById("dialogs").append(host);
    const before = document.activeElement;
    const values = Object.fromEntries(fields.map((field) => [field.name, field.value ?? ""]));
    const id = `dialog-${++last}`;
    let name = "";
    let fault = "";
    let answer = null;

    const allowed = () => typed === null || name === typed;
    function submit(event) {
      event.preventDefault();
      if (!allowed()) return;
      fault = check?.(values) ?? "";
      if (fault) return draw();
      answer = values;
      host.firstChild.close();
    }
    function closed() {
      host.remove();
      if (before?.isConnected) before.focus();
      resolve(answer);
    }
    function draw() {
      render(
        host,
        h(
          "dialog",
          {
            class: danger ? "ask danger" : "ask",
            "aria-labelledby": id,
            "aria-describedby": `${id}-text`,
            onclose: closed,
          },
          h(
            "form",
            { method: "dialog", onsubmit: submit },
            h("h2", { id }, title),
            h("div.ask-text", { id: `${id}-text` }, typeof text === "string" ? h("p", null, text) : text),
            fields.map((field) => control(field, values, draw)),
            typed === null
              ? null
              : h(
                  "label.field",
                  null,
                  h("span", null, "Type ", h("strong.name", null, typed), " to confirm"),
                  h("input", {
                    name: "typed",
                    autocomplete: "off",
                    spellcheck: "false",
                    oninput: (e) => {
                      name = e.target.value;
                      draw();
                    },
                  }),
                ),
            fault ? h("p.fault", { role: "alert" }, fault) : null,
            h(
              "div.buttons",
              null,
              h("button", { type: "button", onclick: () => host.firstChild.close() }, "Cancel"),
              h("button", { type: "submit", class: danger ? "danger" : "primary", disabled: !allowed() }, confirm),
            ),
          ),
        ),
      );
    }
    draw();
    const dialog = host.firstChild;
    dialog.showModal();
    const first = dialog.querySelector("input, textarea, select") ?? dialog.querySelector(".buttons button");
    first.focus();
  });
}

function control(field, values, draw) {
  const changed = (event) => {
    values[field.name] = event.target.type === "checkbox" ? event.target.checked : event.target.value;
    draw();
  };
  const shared = { name: field.name, oninput: changed, placeholder: field.placeholder, required: field.required };
  if (field.kind === "checkbox") {
    return h(
      "label.check",
      null,
      h("input", { ...shared, type: "checkbox", checked: values[field.name] }),
      h("span", null, field.label),
    );
  }
  let made;
  if (field.kind === "area")
    made = h("textarea", { ...shared, rows: 6, spellcheck: "false", value: values[field.name] });
  else if (field.kind === "select") {
    made = h(
      "select",
      { ...shared, value: values[field.name] },
      field.choices.map((one) => h("option", { value: one }, one)),
    );
  } else
    made = h("input", {
      ...shared,
      type: field.kind ?? "text",
      list: field.choices ? `choices-${field.name}` : null,
      autocomplete: "off",
      spellcheck: "false",
      value: values[field.name],
    });
  const choices = field.kind !== "select" && field.choices;
  return h(
    "label.field",
    null,
    h("span", null, field.label),
    made,
    choices
      ? h(
          "datalist",
          { id: `choices-${field.name}` },
          choices.map((one) => h("option", { value: one })),
        )
      : null,
    field.hint ? h("small", null, field.hint) : null,
  );
}

/** A line that says how something went; a fault stays until it is closed. */
export function tell(text, kind = "ok") {
  const host = document.createElement("div");
  const place = document.getElementById("toasts");
  const close = () => {
    host.remove();
  };
  render(
    host,
    h(
      "div.toast",
      { class: kind, role: kind === "bad" ? "alert" : null },
      h("span", null, text),
      h("button.plain", { type: "button", "aria-label": "Close this note", onclick: close }, "×"),
    ),
  );
  place.append(host);
  while (place.children.length > 4) place.firstChild.remove();
  if (kind !== "bad") setTimeout(close, 6000);
}
