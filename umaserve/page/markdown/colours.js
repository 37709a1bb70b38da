// Colours of code: ranges over the text that is there, so neither tokens nor marks in it are touched. What knows a
// language is loaded with the first code in it.

const NAMES = {
  ...{ "c++": "cpp", cc: "cpp", h: "cpp", hpp: "cpp", "c#": "csharp", cs: "csharp", golang: "go", toml: "ini", js: "javascript" },
  ...{ jsx: "javascript", mjs: "javascript", node: "javascript", jsonc: "json", kt: "kotlin", tex: "latex", make: "makefile" },
  ...{ md: "markdown", pl: "perl", ps1: "powershell", py: "python", python3: "python", rb: "ruby", rs: "rust", sh: "bash" },
  ...{ shell: "bash", zsh: "bash", console: "bash", patch: "diff", docker: "dockerfile", ts: "typescript", tsx: "typescript" },
  ...{ html: "xml", svg: "xml", xhtml: "xml", yml: "yaml" },
};
const LANGUAGES = new Set((
  "bash c cpp csharp css diff dockerfile go ini java javascript json kotlin latex lua makefile markdown perl php powershell " +
  "python r ruby rust scala sql swift typescript xml yaml"
).split(" "));
/** What highlight.js calls the pieces, and the highlight that has their colour. */
const COLOURS = {
  ...{ keyword: "keyword", literal: "keyword", "selector-tag": "keyword", name: "keyword", section: "title", built_in: "title" },
  ...{ title: "title", type: "title", string: "string", regexp: "string", addition: "string", number: "number" },
  ...{ symbol: "number", bullet: "number", attr: "attribute", attribute: "attribute", property: "attribute", variable: "attribute" },
  ...{ "template-variable": "attribute", "selector-class": "attribute", "selector-id": "attribute", meta: "comment", comment: "comment" },
  ...{ quote: "comment", deletion: "keyword", code: "string" },
};
const MOST_CHARACTERS = 50_000;

let core = null;
/** By name: a promise of a language, and true once it is there. */
const known = new Map();
/** What was coloured: its ranges are dropped when it is gone. */
const coloured = new Map();

/** Colours all code within `node`, which `render` has put there. */
export function colourCode(node) {
  if (!globalThis.CSS?.highlights) return;
  for (const code of node.querySelectorAll("code[data-language]")) {
    const name = code.dataset.language.toLowerCase();
    const language = NAMES[name] ?? name;
    if (!LANGUAGES.has(language)) continue;
    if (known.get(language) === true) colour(code, language);
    else learn(language).then(() => colour(code, language), () => known.delete(language));
  }
}

function learn(language) {
  if (!known.has(language)) known.set(language, load(language));
  return known.get(language);
}

async function load(language) {
  const [{ default: highlight }, { default: grammar }] = await Promise.all([
    import("../vendor/highlight/core.js"),
    import(`../vendor/highlight/${language}.js`),
  ]);
  core = highlight;
  core.registerLanguage(language, grammar);
  known.set(language, true);
}

function colour(code, language) {
  drop((node) => !node.isConnected || node === code);
  const pieces = piecesOf(code);
  const text = pieces.map((piece) => piece.data).join("");
  if (!code.isConnected || text.length > MOST_CHARACTERS) return;
  const html = core.highlight(text, { language, ignoreIllegals: true }).value;
  const found = new DOMParser().parseFromString(html, "text/html").body;
  const walk = document.createTreeWalker(found, NodeFilter.SHOW_TEXT);
  const ranges = [];
  let [at, piece, before] = [0, 0, 0];
  /** The text node with character `i`, and its place in that; characters are asked for in order. */
  const place = (i) => {
    while (piece < pieces.length - 1 && i - before > pieces[piece].length) before += pieces[piece++].length;
    return [pieces[piece], i - before];
  };
  while (walk.nextNode()) {
    const { length } = walk.currentNode;
    const scope = walk.currentNode.parentElement.closest("[class^=hljs-]")?.classList[0].slice(5);
    const name = COLOURS[scope];
    if (name) {
      const [startContainer, startOffset] = place(at);
      const [endContainer, endOffset] = place(at + length);
      const range = new StaticRange({ startContainer, startOffset, endContainer, endOffset });
      highlightOf(name).add(range);
      ranges.push([name, range]);
    }
    at += length;
  }
  coloured.set(code, ranges);
}

/** The text nodes of code, without the marks of settings that stand between. */
function piecesOf(code) {
  const walk = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
  const pieces = [];
  while (walk.nextNode()) if (!walk.currentNode.parentElement.matches(".mark")) pieces.push(walk.currentNode);
  return pieces;
}

function drop(gone) {
  for (const [code, ranges] of coloured) {
    if (!gone(code)) continue;
    for (const [name, range] of ranges) highlightOf(name).delete(range);
    coloured.delete(code);
  }
}

function highlightOf(name) {
  const key = `code-${name}`;
  if (!CSS.highlights.has(key)) CSS.highlights.set(key, new Highlight());
  return CSS.highlights.get(key);
}
