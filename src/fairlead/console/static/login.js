// The door: user and password, and a sentence when it stays shut.

import { h, redraw } from "./dom.js";
import { post, session } from "./net.js";

const state = { busy: false, fault: "" };

async function submit(event) {
  event.preventDefault();
  const form = event.target;
  state.busy = true;
  state.fault = "";
  redraw();
  try {
    session.me = await post("login", { user: form.user.value, password: form.password.value });
  } catch (fault) {
    state.fault = fault.message;
    form.password.value = "";
    form.password.focus();
  }
  state.busy = false;
  redraw();
}

export function login(mark) {
  return h(
    "main.login",
    { id: "main", tabindex: "-1" },
    h(
      "form.card",
      { onsubmit: submit, "aria-labelledby": "login-title" },
      h("div.login-brand", null, mark(), h("h1", { id: "login-title" }, "Fairlead console")),
      h(
        "label.field",
        null,
        h("span", null, "User"),
        h("input", {
          name: "user",
          autocomplete: "username",
          autocapitalize: "none",
          spellcheck: "false",
          required: true,
          onmount: (node) => setTimeout(() => node.focus(), 50),
        }),
      ),
      h(
        "label.field",
        null,
        h("span", null, "Password"),
        h("input", { name: "password", type: "password", autocomplete: "current-password" }),
      ),
      state.fault ? h("p.fault", { role: "alert" }, state.fault) : null,
      h("button.primary", { type: "submit", disabled: state.busy }, state.busy ? "Looking …" : "Log in"),
      h("p.muted", null, "The same name and password as for clients of this server."),
    ),
  );
}
