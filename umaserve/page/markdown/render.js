// Blocks to DOM nodes. Text goes in as text, and no element or attribute is made of it but a checked link's address.

import { copyText, h } from "../dom.js";
import { parseInline } from "./inline.js";

/** So long a button says what became of it. */
const SHOWN_MS = 1500;
const BLOCKS = {
  // The page has headings of its own above those of an answer.
  heading: ({ level, lines }, paint) => h(`h${Math.min(level + 2, 6)}`, { dir: "auto" }, inline(lines, paint)),
  paragraph: ({ lines }, paint) => h("p", { dir: "auto" }, inline(lines, paint)),
  rule: () => h("hr"),
  quote: ({ blocks }, paint) => h("blockquote", { dir: "auto" }, blocks.map((each) => renderBlock(each, paint))),
  ...{ code, call, list, math, table },
};

/** The node of one block. `paint(text, at)` makes the nodes of a piece of the source's text. */
export function renderBlock(block, paint) {
  return BLOCKS[block.type](block, paint);
}

function inline(lines, paint) {
  return spans(parseInline(lines), paint);
}

function spans(all, paint) {
  return all.map((span) => {
    if (span.type === "text") return paint(span.text, span.at);
    if (span.type === "br") return h("br");
    if (span.type === "math") return formula("span.math", span, paint(span.text, span.at));
    if (span.type === "code") return h("code", {}, paint(span.text, span.at));
    return span.type === "link" ? link(span, paint) : h(span.type, {}, spans(span.spans, paint));
  });
}

/** Pictures are links too: nothing is fetched because a model wrote it. */
function link({ href, spans: inside }, paint) {
  const safe = { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" };
  return h("a", safe, inside.length > 0 ? spans(inside, paint) : href);
}

function code({ language, lines }, paint) {
  const text = h("code", { dir: "ltr", "data-language": language || null }, verbatim(lines, paint));
  const copy = h("button.quiet", { onclick: () => copyCode(copy, text) }, "Copy");
  const name = language || "code";
  return h("figure.code", {}, h("figcaption", {}, h("span", {}, name), copy), scrollable("pre", name, text));
}

/** As it is written, to be set later. */
function formula(tag, { tex, display }, source) {
  return Object.assign(h(tag, {}, source), { formula: { tex, display } });
}

function math({ tex, lines }, paint) {
  return formula("div.math", { tex, display: true }, verbatim(lines, paint));
}

/** Without the marks of settings that stand between. */
async function copyCode(button, code) {
  const pieces = [...code.childNodes].filter((node) => !node.classList?.contains("mark"));
  const copied = await copyText(pieces.map((node) => node.textContent).join(""));
  button.textContent = copied ? "Copied" : "Select it, and press Ctrl+C";
  setTimeout(() => (button.textContent = "Copy"), SHOWN_MS);
}

function call({ lines }, paint) {
  const text = lines.map((line) => line.text).join("\n");
  const name = /"name"\s*:\s*"([^"\\]{1,80})"/.exec(text.slice(0, 4096))?.[1] ?? "a tool";
  const body = scrollable("pre", "Tool call", h("code", { dir: "ltr" }, verbatim(lines, paint)));
  return h("details.call", {}, h("summary", {}, `Calls ${name}`), body);
}

/** Lines that follow one another in the source are one piece of it. */
function verbatim(lines, paint) {
  const pieces = [];
  lines.forEach(({ at, text }, i) => {
    const whole = i < lines.length - 1 ? `${text}\n` : text;
    const last = pieces[pieces.length - 1];
    if (last && last.at + last.text.length === at) last.text += whole;
    else pieces.push({ at, text: whole });
  });
  return pieces.flatMap(({ at, text }) => paint(text, at));
}

/** What may be wider than the page scrolls by itself, with the keyboard too. */
function scrollable(tag, label, ...children) {
  return h(tag, { tabIndex: 0, role: "group", "aria-label": label }, ...children);
}

function list({ ordered, first, items }, paint) {
  const entries = items.map(({ done, blocks }) => {
    const tight = blocks.length > 0 && blocks[0].type === "paragraph";
    const head = tight ? inline(blocks[0].lines, paint) : [];
    const rest = (tight ? blocks.slice(1) : blocks).map((each) => renderBlock(each, paint));
    return h(done === undefined ? "li" : "li.task", { dir: "auto" }, box(done), head, rest);
  });
  return ordered ? h("ol", { start: first }, entries) : h("ul", {}, entries);
}

function box(done) {
  return done === undefined ? null : h("span", { role: "img", "aria-label": done ? "done" : "to do" }, done ? "☑ " : "☐ ");
}

function table({ aligns, rows }, paint) {
  const row = (cells, tag) => h("tr", {}, aligns.map((align, i) => {
    return h(`${tag}.${align}`, { dir: "auto" }, cells[i] ? inline([cells[i]], paint) : null);
  }));
  const [head, ...body] = rows;
  const inside = h("table", {}, h("thead", {}, row(head, "th")), h("tbody", {}, body.map((cells) => row(cells, "td"))));
  return scrollable("div.table", "Table", inside);
}
