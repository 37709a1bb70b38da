// The figures of the last minutes, each as a line with its summary in words beside it.

import { h } from "../dom.js";
import { bytes } from "../words.js";
import { count, milliseconds } from "./words.js";

const LONGEST_S = 300;
const SHORTEST_S = 30;
/** Seconds without an event that a line does not bridge. */
const HOLE_S = 3;
/** So wide and high is a chart, before it is stretched to its place. */
const SIDE = 100;

const CHARTS = [
  { title: "Tokens per second", about: "of all answers together", value: (f) => f.tokens_per_s, words: (v) => v.toFixed(1) },
  { title: "Gap of tokens, p95", about: "how long readers wait for the next token, at worst in 19 of 20 cases", value: (f) => f.gap_ms_p95, limit: (f) => f.target_gap_ms, limitName: "target", words: milliseconds },
  { title: "Waiting requests", about: "for a slot or for memory; if some always wait, the box is too small", value: (f) => f.waiting, words: count, note: (f) => `${count(f.running)} running` },
  { title: "KV cells in use", about: "tokens that running answers remember; where all are in use, answers take turns", value: (f) => f.kv_cells_used, limit: (f) => f.kv_cells_total, limitName: "of", words: count, note: (f) => `${count(f.kv_cells_cached)} cached` },
  { title: "Memory", about: "of the daemon and its models", value: (f) => f.memory_bytes, words: bytes, note: (f) => `${bytes(f.available_bytes)} available` },
  { title: "Compute threads", about: "cores that compute; fewer while other programs need some", value: (f) => f.threads, words: count, note: (f) => threadWords(f.threads_reason) },
  { title: "Crashes of engines", about: "each was started anew, and its answers went on", value: (f) => f.crashes, words: count },
];

/** What came so far, also of an earlier visit: [seconds, figures], the oldest first. */
const history = [];

function threadWords(reason) {
  return reason === "" ? "no model is loaded" : reason === "all" ? "all that may be used" : reason;
}

export function charts() {
  const all = CHARTS.map(chart);
  return {
    node: h("section", { "aria-label": "Charts" }, h("h2", {}, "The last minutes"), h("div.charts", {}, all.map((one) => one.node))),
    show({ at, figures }) {
      history.push([at, figures]);
      while (history[0][0] < at - LONGEST_S || history[0][0] > at) history.shift();
      for (const one of all) one.show(at, figures);
    },
  };
}

function chart({ title, about, value, words, limit, limitName, note }) {
  const now = h("strong");
  const purpose = h("p.hint", {}, about);
  const summary = h("p.hint");
  const line = h("path");
  const target = h("path.target");
  const stretched = { viewBox: `0 0 ${SIDE} ${SIDE}`, preserveAspectRatio: "none", "aria-hidden": "true" };
  const drawing = h("svg", stretched, line, target);

  return {
    node: h("figure", {}, h("figcaption", {}, h("span", {}, title), now), purpose, drawing, summary),
    show(at, latest) {
      const points = history.map(([when, figures]) => [when, value(figures)]);
      const known = points.map(([, y]) => y).filter((y) => y !== null);
      const bound = limit?.(latest);
      const current = value(latest);
      now.textContent = current === null ? "–" : words(current);
      const told = [rangeWords(known, words), bound && `${limitName} ${words(bound)}`, note?.(latest)];
      summary.textContent = told.filter(Boolean).join("; ");
      const top = Math.max(1e-9, bound ?? 0, ...known) * 1.08;
      const span = Math.max(SHORTEST_S, at - points[0][0]);
      const x = (when) => SIDE - ((at - when) / span) * SIDE;
      const y = (amount) => SIDE - 2 - (amount / top) * (SIDE - 4);
      line.setAttribute("d", lineOf(points, x, y));
      target.setAttribute("d", bound === undefined ? "" : `M0 ${y(bound)}H${SIDE}`);
    },
  };
}

function rangeWords(known, words) {
  if (known.length === 0) return "nothing yet";
  const [least, most] = [Math.min(...known), Math.max(...known)].map(words);
  return least === most ? "steady" : `from ${least} to ${most}`;
}

/** The path through [when, amount]; where nothing is known it begins anew. */
function lineOf(points, x, y) {
  let before = null;
  return points.map(([when, amount]) => {
    const begins = before === null || when - before > HOLE_S;
    before = amount === null ? null : when;
    return amount === null ? "" : `${begins ? `M${x(when)} ${y(amount)}` : ""}L${x(when)} ${y(amount)}`;
  }).join("");
}
