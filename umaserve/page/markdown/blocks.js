// Markdown to blocks: plain data, each with the range of the source that it came from. Linear in the text's length.
//
// A line is {at, text}: what containers have left of it, and where in the source that is.

const MAX_DEPTH = 8;

const FENCE = /^ {0,3}(`{3,}|~{3,}) *([^\s`]{0,40})[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const UNDERLINE = /^ {0,3}(?:(=+)|-{2,})[ \t]*$/;
const INDENTED = /^(?: {4}|\t)/;
/** How a formula of its own begins, and what then ends it. */
const MATH = /^ {0,3}(?:(\\\[)|(\$\$)|\\begin\{((?:equation|align|alignat|gather|multline|eqnarray)\*?)\})/;
const MOST_MATH_LINES = 60;
const CALL = /^ {0,3}<tool_call>/;

/** The blocks of `text` from `from` on, which is where a line begins. The last one may change as text is added. */
export function parseBlocks(text, from = 0) {
  const lines = [];
  for (let at = from; at <= text.length; ) {
    const end = text.indexOf("\n", at);
    const stop = end < 0 ? text.length : end;
    lines.push({ at, text: text.slice(at, stop).replace(/\r$/, "") });
    at = stop + 1;
  }
  return blocksOf(lines, 0);
}

function blocksOf(lines, depth) {
  const blocks = [];
  for (let i = 0; i < lines.length; ) {
    if (isBlank(lines[i])) {
      i += 1;
      continue;
    }
    const block = depth < MAX_DEPTH ? special(lines, i, depth) : null;
    const found = block ?? paragraph(lines, i, depth);
    const last = lines[found.next - 1];
    blocks.push({ ...found.block, start: lines[i].at, end: last.at + last.text.length });
    i = found.next;
  }
  return blocks;
}

/** What begins at line `i` other than a paragraph; null if that is one. */
function special(lines, i, depth) {
  const text = lines[i].text;
  const fence = FENCE.exec(text);
  if (fence) return code(lines, i, fence);
  const heading = HEADING.exec(text);
  if (heading) {
    const line = cut(lines[i], heading[0].length);
    return { block: { type: "heading", level: heading[1].length, lines: [withoutHashes(line)] }, next: i + 1 };
  }
  if (RULE.test(text)) return { block: { type: "rule" }, next: i + 1 };
  if (QUOTE.test(text)) return quote(lines, i, depth);
  if (ITEM.test(text)) return list(lines, i, depth);
  if (CALL.test(text)) return call(lines, i);
  if (INDENTED.test(text)) return indented(lines, i);
  if (MATH.test(text)) return math(lines, i);
  if (isTable(lines, i)) return table(lines, i);
  return null;
}

function paragraph(lines, i, depth) {
  const ends = (at) => isBlank(lines[at]) || UNDERLINE.test(lines[at].text) || (depth < MAX_DEPTH && interrupts(lines, at));
  const next = until(lines, i + 1, ends);
  const under = UNDERLINE.exec(lines[next]?.text ?? "");
  if (under) {
    const block = { type: "heading", level: under[1] ? 1 : 2, lines: lines.slice(i, next).map(trimmed) };
    return { block, next: next + 1 };
  }
  return { block: { type: "paragraph", lines: lines.slice(i, next).map(trimmed) }, next };
}

function interrupts(lines, i) {
  const text = lines[i].text;
  return [FENCE, HEADING, RULE, QUOTE, ITEM, CALL, MATH].some((form) => form.test(text)) || isTable(lines, i);
}

function code(lines, i, [, marks, language]) {
  const indent = spacesOf(lines[i]);
  const closing = new RegExp(`^ {0,3}\\${marks[0]}{${marks.length},}[ \\t]*$`);
  const end = until(lines, i + 1, (at) => closing.test(lines[at].text));
  const inside = lines.slice(i + 1, end).map((line) => cut(line, Math.min(indent, spacesOf(line))));
  return { block: { type: "code", language, lines: inside }, next: Math.min(end + 1, lines.length) };
}

/** Lines that stand four characters in, and blank ones between them. */
function indented(lines, i) {
  let next = until(lines, i, (at) => !isBlank(lines[at]) && !INDENTED.test(lines[at].text));
  while (isBlank(lines[next - 1])) next -= 1;
  const inside = lines.slice(i, next).map((line) => cut(line, INDENTED.exec(line.text)?.[0].length ?? line.text.length));
  return { block: { type: "code", language: "", lines: inside }, next };
}

/** Until its end has come it is a paragraph, in which nothing else begins: a plus in it is no list. */
function math(lines, i) {
  const [opening, bracket, dollars, environment] = MATH.exec(lines[i].text);
  const close = bracket ? "\\]" : dollars ?? `\\end{${environment}}`;
  const most = Math.min(lines.length, i + MOST_MATH_LINES);
  const from = (at) => (at === i ? opening.length : 0);
  const over = (at) => at === most || isBlank(lines[at]) || lines[at].text.includes(close, from(at));
  const last = until(lines, i, over);
  const text = lines[last]?.text.trimEnd() ?? "";
  const point = /[.,;:]?$/.exec(text)[0];
  const end = text.length - point.length - close.length;
  if (last === most || end < from(last) || !text.startsWith(close, end) || text.indexOf(close, from(last)) !== end) {
    const next = last < most && !isBlank(lines[last]) ? last + 1 : last;
    return { block: { type: "paragraph", lines: lines.slice(i, next).map(trimmed) }, next };
  }
  const whole = lines.slice(i, last + 1);
  const inside = whole.map(({ text: each }) => each).join("\n").trim().slice(0, point ? -1 : undefined);
  const tex = environment ? inside : inside.slice(2, -close.length);
  return { block: { type: "math", tex: tex + point, lines: whole }, next: last + 1 };
}

function call(lines, i) {
  const end = until(lines, i, (at) => lines[at].text.includes("</tool_call>"));
  const next = Math.min(end + 1, lines.length);
  return { block: { type: "call", lines: lines.slice(i, next) }, next };
}

function quote(lines, i, depth) {
  const next = until(lines, i, (at) => !QUOTE.test(lines[at].text));
  const inside = lines.slice(i, next).map((line) => cut(line, QUOTE.exec(line.text)[0].length));
  return { block: { type: "quote", blocks: blocksOf(inside, depth + 1) }, next };
}

function list(lines, i, depth) {
  const first = ITEM.exec(lines[i].text);
  const ordered = /\d/.test(first[2]);
  const items = [];
  let next = i;
  while (next < lines.length) {
    const mark = ITEM.exec(lines[next].text);
    if (!mark || mark[2].slice(-1) !== first[2].slice(-1) || RULE.test(lines[next].text)) break;
    const width = Math.min(mark[0].length, mark[1].length + mark[2].length + 4) + (mark[3] ? 0 : 1);
    const end = until(lines, next + 1, (at) => endsItem(lines, at, width));
    const rest = lines.slice(next + 1, end).map((line) => cut(line, Math.min(spacesOf(line), width)));
    items.push(item([cut(lines[next], mark[0].length), ...rest], depth));
    next = end;
  }
  return { block: { type: "list", ordered, first: ordered ? parseInt(first[2], 10) : 1, items }, next };
}

/** Whether an item whose text stands `width` characters in ends before line `i`. */
function endsItem(lines, i, width) {
  if (!isBlank(lines[i])) return spacesOf(lines[i]) < width && (interrupts(lines, i) || isBlank(lines[i - 1]));
  const after = lines[i + 1];
  return !after || !(isBlank(after) || spacesOf(after) >= width || ITEM.test(after.text));
}

function item(lines, depth) {
  const box = /^\[([ xX])\] /.exec(lines[0].text);
  if (!box) return { blocks: blocksOf(lines, depth + 1) };
  return { done: box[1] !== " ", blocks: blocksOf([cut(lines[0], 4), ...lines.slice(1)], depth + 1) };
}

function isTable(lines, i) {
  const under = lines[i + 1];
  return under !== undefined && lines[i].text.includes("|") && under.text.includes("|") && DELIMITERS.test(under.text);
}

function table(lines, i) {
  const aligns = cells(lines[i + 1]).map(({ text }) => {
    const [left, right] = [text.startsWith(":"), text.endsWith(":")];
    return left && right ? "center" : right ? "end" : "start";
  });
  const next = until(lines, i + 2, (at) => isBlank(lines[at]) || !lines[at].text.includes("|"));
  const rows = [lines[i], ...lines.slice(i + 2, next)].map((line) => cells(line).slice(0, aligns.length));
  return { block: { type: "table", aligns, rows }, next };
}

function cells(line) {
  const found = [];
  const whole = trimmed(line);
  let from = whole.text.startsWith("|") ? 1 : 0;
  for (let i = from; i <= whole.text.length; i += 1) {
    if (i < whole.text.length && (whole.text[i] !== "|" || whole.text[i - 1] === "\\")) continue;
    if (i < whole.text.length || from < i) found.push(trimmed({ at: whole.at + from, text: whole.text.slice(from, i) }));
    from = i + 1;
  }
  return found;
}

/** The first line from number `i` on that `ends` something; the number of lines where none does. */
function until(lines, i, ends) {
  let at = i;
  while (at < lines.length && !ends(at)) at += 1;
  return at;
}

const spacesOf = ({ text }) => text.search(/[^ ]|$/);
const isBlank = ({ text }) => text.trim() === "";
const cut = ({ at, text }, n) => ({ at: at + n, text: text.slice(n) });

function trimmed(line) {
  const start = line.text.search(/\S|$/);
  return { at: line.at + start, text: line.text.slice(start).trimEnd() };
}

function withoutHashes(line) {
  const whole = trimmed(line);
  const hashes = /[ \t]#+$/.exec(whole.text.slice(-12));
  return hashes ? { at: whole.at, text: whole.text.slice(0, -hashes[0].length).trimEnd() } : whole;
}
