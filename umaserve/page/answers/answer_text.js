// An answer's text as it grows: finished blocks stay as they are, only the last one is drawn again.

import { parseBlocks } from "../markdown/blocks.js";
import { colourCode } from "../markdown/colours.js";
import { setFormulas } from "../markdown/formulas.js";
import { renderBlock } from "../markdown/render.js";
import { h } from "../dom.js";
import { titleOf } from "./settings.js";

/** Control characters, and those that turn a text's direction for all that follows, are shown as what they are. */
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f\u202a-\u202e\u2066-\u2069]/g;
const SHADES = [0.9, 0.6, 0.3, 0.1];
const COLOURS = 5;

/** Draws an answer into `node`. */
export class AnswerText {
  #node;
  #drawn = [];
  #length = 0;
  #shaded = false;

  constructor(node) {
    this.#node = node;
  }

  draw(answer, shaded) {
    if (answer.text.length < this.#length || shaded !== this.#shaded) {
      this.#node.replaceChildren();
      this.#drawn = [];
    } else if (answer.text.length === this.#length) return;
    this.#shaded = shaded;
    this.#length = answer.text.length;
    const last = this.#drawn.pop();
    last?.node.remove();
    for (const block of parseBlocks(answer.text, last?.block.start ?? 0)) {
      const before = this.#drawn[this.#drawn.length - 1]?.marked ?? 0;
      const { paint, marked } = painter(answer, before, shaded);
      const node = renderBlock(block, paint);
      this.#drawn.push({ block, node, marked: marked() });
      this.#node.append(node);
      // Tokens are shown as they were written.
      if (!shaded) setFormulas(node);
      // Once all of it is in the page.
      queueMicrotask(() => colourCode(node));
    }
  }
}

/**
 * Makes the nodes of a block's text in order: its tokens, if they are to be seen, and the marks after the first `passed`
 * ones. A mark stands before the first text to be seen that was written with it, which may be in a later block: where it
 * was made there may be nothing to be seen, as in a link's address or before the asterisks that end bold text.
 */
function painter(answer, passed, shaded) {
  const { marks } = answer;
  const paint = (text, at) => {
    if (!shaded && marks.length === 0) return visible(text);
    const nodes = [];
    const end = at + text.length;
    let next = shaded ? firstAfter(answer.tokens, at) : 0;
    for (let i = at; i < end; ) {
      while (passed < marks.length && marks[passed].at <= i) nodes.push(markNode(marks[passed++], passed));
      const token = shaded ? answer.tokens[next] : undefined;
      const stop = Math.min(end, token?.end ?? end, marks[passed]?.at ?? end);
      nodes.push(piece(visible(text.slice(i - at, stop - at)), passed, token, next));
      i = stop;
      if (token && token.end <= i) next += 1;
    }
    return nodes;
  };
  return { paint, marked: () => passed };
}

function piece(text, passed, token, number) {
  const classes = passed > 0 ? [`under-${passed % COLOURS}`] : [];
  if (token === undefined) return classes.length > 0 ? h(`span.${classes[0]}`, {}, text) : text;
  classes.push("token", token.chosen ? "chosen" : `shade-${shade(token.logprob)}`);
  return h(["span", ...classes].join("."), { tabIndex: -1, role: "button", "data-token": String(number) }, text);
}

function markNode({ values }, number) {
  const words = Object.entries(values).map(([name, value]) => `${titleOf(name).toLowerCase()} ${value}`);
  return h(`span.mark.under-${number % COLOURS}`, { title: "From here on, written with this" }, words.join(", "));
}

function shade(logprob) {
  if (logprob === undefined) return 0;
  const probability = Math.exp(logprob);
  return SHADES.filter((limit) => probability < limit).length;
}

/** The number of the first token that ends after character `at`. */
function firstAfter(tokens, at) {
  let [low, high] = [0, tokens.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (tokens[middle].end > at) high = middle;
    else low = middle + 1;
  }
  return low;
}

export function visible(text) {
  return text.replace(HIDDEN, (char) => {
    const code = char.codePointAt(0);
    return code < 32 ? String.fromCodePoint(0x2400 + code) : code === 127 ? "\u2421" : "\ufffd";
  });
}
