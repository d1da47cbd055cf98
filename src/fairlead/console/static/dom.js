// What is seen, described as plain values and patched into the page: whoever types into a field or stands on a button
// keeps field and focus while figures change around them.
//
// Nothing here takes markup. Text becomes text nodes, attributes are set by name, and links lead only to this server: so a
// message that is full of tags is shown as what it is, a text.

const SVG = "http://www.w3.org/2000/svg";
const MADE = Symbol("children");
const HANDLERS = Symbol("handlers");
const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "open", "indeterminate", "hidden"]);

/** A node to be: h("div.card", {onclick}, "text", [more], null). `key` in the properties lets it move among siblings. */
export function h(tag, properties, ...children) {
  const [name, ...classes] = tag.split(".");
  const { key = null, ...rest } = properties ?? {};
  if (classes.length) rest.class = [...classes, rest.class].filter(Boolean).join(" ");
  return { tag: name, key, properties: rest, children: children.flat(Infinity).map(vnode) };
}

function vnode(child) {
  if (child === null || child === undefined || child === false || child === true) return { text: "" };
  return typeof child === "object" ? child : { text: String(child) };
}

/** Make the children of `node` be these. */
export function render(node, ...children) {
  patchChildren(node, children.flat(Infinity).map(vnode), node.namespaceURI === SVG);
}

function patchChildren(node, wanted, inSvg) {
  const keyed = new Map();
  const loose = [];
  for (const old of node[MADE] ?? []) {
    // A key that came twice is kept once; the other one's node would be nobody's, so it goes.
    if (old.key == null) loose.push(old);
    else if (keyed.has(old.key)) old.node.remove();
    else keyed.set(old.key, old);
  }
  let next = 0;
  const made = wanted.map((one) => {
    let old = null;
    if (one.key != null) {
      old = keyed.get(one.key);
      keyed.delete(one.key);
    } else if (next < loose.length) old = loose[next++];
    if (old && old.tag === one.tag) {
      one.node = old.node;
      patch(old, one, inSvg);
    } else {
      old?.node.remove();
      one.node = create(one, inSvg);
    }
    return one;
  });
  for (const old of keyed.values()) old.node.remove();
  for (const old of loose.slice(next)) old.node.remove();
  let at = node.firstChild;
  for (const { node: child } of made) {
    if (child === at) at = at.nextSibling;
    else node.insertBefore(child, at);
  }
  node[MADE] = made;
}

function create(one, inSvg) {
  if (one.tag === undefined) return document.createTextNode(one.text);
  const svg = inSvg || one.tag === "svg";
  const node = svg ? document.createElementNS(SVG, one.tag) : document.createElement(one.tag);
  patchChildren(node, one.children, svg); // children first: the value of a select needs its options
  for (const [name, value] of Object.entries(one.properties)) set(node, name, value, undefined);
  if (one.properties.onmount) one.properties.onmount(node);
  return node;
}

function patch(old, one, inSvg) {
  const { node } = one;
  if (one.tag === undefined) {
    if (old.text !== one.text) node.data = one.text;
    return;
  }
  patchChildren(node, one.children, inSvg || one.tag === "svg");
  for (const name of Object.keys(old.properties)) {
    if (!(name in one.properties)) set(node, name, undefined, old.properties[name]);
  }
  for (const [name, value] of Object.entries(one.properties)) set(node, name, value, old.properties[name]);
}

function set(node, name, value, before) {
  if (name === "onmount") return;
  if (name.startsWith("on")) {
    if (value && typeof value !== "function") throw new TypeError(`${name} wants a function`);
    const handlers = (node[HANDLERS] ??= {});
    if (!(name in handlers)) node.addEventListener(name.slice(2), (event) => handlers[name]?.call(node, event));
    handlers[name] = value;
  } else if (name === "style") {
    for (const [property, to] of Object.entries(value ?? {})) node.style.setProperty(property, to);
  } else if (PROPERTIES.has(name) && node.namespaceURI !== SVG) {
    // What somebody has typed since the last patch stays, unless what we want there has changed.
    if (value !== before) node[name] = value ?? (name === "value" ? "" : false);
  } else if (value === undefined || value === null || value === false) {
    node.removeAttribute(name);
  } else if (value !== before) {
    if ((name === "href" || name === "src") && !/^(#|\/(?!\/)|https:\/\/)/.test(value))
      throw new TypeError(`a link to ${value}`);
    if (name === "srcdoc" || name === "innerHTML") throw new TypeError(`no markup: ${name}`);
    node.setAttribute(name, value === true ? "" : value);
  }
}

let drawing = null;
let wanted = false;

/** What redraw() draws. */
export function drawWith(draw) {
  drawing = draw;
}

/** Draw again soon; many wishes make one drawing. */
export function redraw() {
  if (wanted) return;
  wanted = true;
  // A page in the background gets no animation frames, but its figures should be right when somebody comes back.
  const soon = document.hidden ? (go) => setTimeout(go, 250) : requestAnimationFrame;
  soon(() => {
    wanted = false;
    drawing?.();
  });
}

/** Say something to those who listen to the page instead of looking at it. */
export function announce(text) {
  document.getElementById("announce").textContent = text;
}
