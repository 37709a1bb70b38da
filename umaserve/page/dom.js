// Makes DOM nodes. Strings become text, never markup.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "path"]);

/** An element: `h("button.quiet", {onclick}, "Copy")`. Children may be nodes, texts, lists and null. */
export function h(tag, props = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = DRAWN.has(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  if (classes.length > 0) node.classList.add(...classes);
  if (name === "button") node.type = "button";
  // Nothing is sent by the browser itself.
  if (name === "form") node.addEventListener("submit", (event) => event.preventDefault());
  // One by one, since arguments are limited; and before dir="auto", which looks at all text after each change.
  for (const child of present(children)) node.append(child);
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "value" || (key in node && typeof value !== "string")) node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  return node;
}

const ICONS = {
  add: "M12 5v14M5 12h14",
  back: "M15 6l-6 6 6 6",
  camera: "M4 8h4l2-3h4l2 3h4v11H4zM12 10.5a3 3 0 1 0 .01 0",
  clip: "M19 11l-8 8a5 5 0 0 1-7-7l8-8a3.5 3.5 0 0 1 5 5l-8 8a2 2 0 0 1-3-3l7-7",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h10v10H9zM5 15V5h10",
  down: "M12 5v14M6 13l6 6 6-6",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  film: "M3 6h12v12H3zM15 11l6-4v10l-6-4",
  go_on: "M5 6l7 6-7 6zM13 6l7 6-7 6z",
  list: "M4 7h16M4 12h16M4 17h16",
  microphone: "M12 3a3 3 0 0 1 3 3v5a3 3 0 0 1-6 0V6a3 3 0 0 1 3-3zM5 11a7 7 0 0 0 14 0M12 18v3",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  next: "M9 6l6 6-6 6",
  pause: "M8 5v14M16 5v14",
  picture: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15 9h.01",
  play: "M7 5l12 7-12 7z",
  redo: "M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6",
  remove: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  save: "M12 4v11M7 10l5 5 5-5M5 20h14",
  server: "M4 5h16v6H4zM4 13h16v6H4zM8 8h.01M8 16h.01",
  send: "M12 20V5M5 12l7-7 7 7",
  silent: "M11 5L6 9H3v6h3l5 4zM16 9.5l5 5M21 9.5l-5 5",
  sliders: "M4 8h9M17 8h3M15 6v4M4 16h3M11 16h9M9 14v4",
  sound: "M11 5L6 9H3v6h3l5 4zM15.5 8.5a5 5 0 0 1 0 7M18.5 6a9 9 0 0 1 0 12",
  stop: "M7 7h10v10H7z",
  talk: "M4 5h16v11h-8l-4 4v-4H4zM9 9v3M12 8v5M15 9v3",
  tool: "M20 7l-4 4-3-3 4-4a5 5 0 0 0-7 6L4 16a2 2 0 0 0 4 4l6-6a5 5 0 0 0 6-7z",
  upload: "M12 15V4M7 9l5-5 5 5M5 20h14",
  wave: "M4 10v4M8 6v12M12 9v6M16 4v16M20 10v4",
};

export function icon(name) {
  return h("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, h("path", { d: ICONS[name] }));
}

/** A button that shows an icon only. `label` is its name, for screen readers and as a tooltip. */
export function iconButton(name, label, onclick, props = {}) {
  return h("button.icon", { "aria-label": label, title: label, onclick, ...props }, icon(name));
}

/** What lies over the page goes beside `element`, and within the window. */
export function placeBeside(over, element) {
  const { left, bottom } = element.getBoundingClientRect();
  over.style.left = `${Math.max(8, Math.min(left, innerWidth - over.offsetWidth - 8))}px`;
  over.style.top = `${Math.max(8, Math.min(bottom + 4, innerHeight - over.offsetHeight - 8))}px`;
}

/** A button that opens a list of others; these are {name, label, act, disabled}, `name` that of an icon. */
export function menuButton(label, items) {
  const list = h("div.over.menu", { popover: "auto", role: "group", "aria-label": label }, items.map(({ name, label: title, act, disabled }) => {
    const onclick = () => (list.hidePopover(), act());
    return h("button", { onclick, disabled }, icon(name), title);
  }));
  const button = iconButton("more", label, null, { popoverTargetElement: list });
  list.addEventListener("toggle", ({ newState }) => {
    if (newState !== "open") return;
    placeBeside(list, button);
    list.querySelector("button:enabled")?.focus();
  });
  return h("span.more", {}, button, list);
}

/** A field for a text of several lines. Enter sends it, Shift+Enter breaks the line. */
export function messageField(send, props) {
  const onkeydown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return h("textarea", { dir: "auto", onkeydown, ...props });
}

/** Makes these the children of `node`. Those that stay are not touched, so that they keep the focus. */
export function fill(node, ...children) {
  const wanted = present(children);
  const staying = new Set(wanted);
  for (const child of [...node.childNodes]) if (!staying.has(child)) child.remove();
  wanted.forEach((child, i) => {
    const there = node.childNodes[i];
    if (there === undefined) node.append(child);
    else if (there !== child) there.before(child);
  });
}

/** Loads a style that is needed from now on; promises that it holds. */
export function loadStyle(href) {
  return new Promise((onload) => document.head.append(h("link", { rel: "stylesheet", href, onload, onerror: onload })));
}

/** Gives people a file to keep. */
export function saveFile(blob, name) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Puts a text on the clipboard; whether that worked. To pages over plain http browsers give no navigator.clipboard. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const focused = document.activeElement;
  const area = h("textarea.hidden", { value: text });
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused.focus();
  return copied;
}

/** As `fill`. If what has the focus goes, the button in its place gets it, else the first one, or `otherwise`. */
export function refill(node, children, otherwise) {
  const at = [...node.children].findIndex((child) => child.contains(document.activeElement));
  fill(node, children);
  if (at < 0 || node.contains(document.activeElement)) return;
  const next = node.children[at] ?? node.lastElementChild ?? node;
  const places = [next, ...next.querySelectorAll("button"), ...node.querySelectorAll("button")];
  (places.find((each) => each.matches("button:enabled")) ?? otherwise)?.focus();
}

/** Shows a list in `node`: an item's view, {node, show(item)}, is made once, and stays as long as its item's key. */
export function shownBy(key, make, node, otherwise) {
  let views = new Map();
  return (items) => {
    views = new Map(items.map((item) => [key(item), views.get(key(item)) ?? make(item)]));
    for (const item of items) views.get(key(item)).show?.(item);
    refill(node, [...views.values()].map((view) => view.node), otherwise);
  };
}

/** Writes a text where it is another one: readers aloud hear of each writing. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function present(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}
