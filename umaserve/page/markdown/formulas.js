// Formulas as they are set. What sets them is loaded with the first one; until then, and where it can't, they stand as written.

const MOST_CHARACTERS = 4000;
/** Whatever a model writes: no links, no pictures, no endless macros. */
const OPTIONS = { throwOnError: true, strict: "ignore", trust: false, maxSize: 50, maxExpand: 200 };
/** Elements within one another: browsers crash where they lay out thousands. */
const MOST_DEEP = 150;
const MOST_KEPT = 500;

let loading = null;
let katex = null;
/** By source: a paragraph that grows is drawn again and again. */
const set = new Map();

/** Sets all formulas within `node`, which `render` has put there. */
export function setFormulas(node) {
  const all = [...node.querySelectorAll(".math")];
  if (node.matches(".math")) all.push(node);
  if (all.length === 0) return;
  if (katex) all.forEach(setFormula);
  else (loading ??= load()).then(() => all.forEach(setFormula), () => (loading = null));
}

async function load() {
  const style = document.createElement("link");
  Object.assign(style, { rel: "stylesheet", href: "/page/vendor/katex.min.css" });
  document.head.append(style);
  await import("../vendor/katex.min.js");
  ({ katex } = globalThis);
}

function setFormula(node) {
  const { tex, display } = node.formula;
  // A change of settings within it is marked in what was written.
  if (tex.length > MOST_CHARACTERS || node.querySelector(".mark")) return;
  const key = `${display} ${tex}`;
  if (!set.has(key)) {
    if (set.size >= MOST_KEPT) set.clear();
    set.set(key, made(tex, display));
  }
  const known = set.get(key);
  if (known) node.replaceChildren(known.cloneNode(true));
}

function isDeep(root) {
  const depths = new Map([[root, 0]]);
  for (const element of root.querySelectorAll("*")) depths.set(element, depths.get(element.parentNode) + 1);
  return [...depths.values()].some((depth) => depth > MOST_DEEP);
}

/** Null where this is no formula. */
function made(tex, displayMode) {
  const place = document.createElement("span");
  try {
    katex.render(tex, place, { ...OPTIONS, displayMode });
  } catch {
    return null;
  }
  return isDeep(place) ? null : place.firstChild;
}
