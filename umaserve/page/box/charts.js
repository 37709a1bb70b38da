// The figures of the last minutes, each as a line on a canvas with its summary in words beside it.

import { h } from "../dom.js";
import { bytes } from "../words.js";
import { count, milliseconds } from "./words.js";

const LONGEST_S = 300;
const SHORTEST_S = 30;
/** Seconds without an event that a line does not bridge. */
const HOLE_S = 3;
const HEIGHT = 72;

const CHARTS = [
  { title: "Tokens per second", value: (f) => f.tokens_per_s, words: (v) => v.toFixed(1) },
  { title: "Gap of tokens, p95", value: (f) => f.gap_ms_p95, limit: (f) => f.target_gap_ms, limitName: "target", words: milliseconds },
  { title: "Waiting requests", value: (f) => f.waiting, words: count, note: (f) => `${count(f.running)} running` },
  { title: "KV cells in use", value: (f) => f.kv_cells_used, limit: (f) => f.kv_cells_total, limitName: "of", words: count, note: (f) => `${count(f.kv_cells_cached)} cached` },
  { title: "Memory", value: (f) => f.memory_bytes, words: bytes, note: (f) => `${bytes(f.available_bytes)} left on the box` },
  { title: "Compute threads", value: (f) => f.threads, words: count, note: (f) => threadWords(f.threads_reason) },
  { title: "Crashes of engines", value: (f) => f.crashes, words: count },
];

/** What came so far, also of an earlier visit: [seconds, figures], the oldest first. */
const history = [];

function threadWords(reason) {
  return reason === "" ? "no model is loaded" : reason === "all" ? "all that may be used" : reason;
}

export function charts() {
  const all = CHARTS.map(chart);
  const draw = () => all.forEach((one) => one.draw());
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const sizes = new ResizeObserver(draw);
  scheme.addEventListener("change", draw);
  all.forEach((one) => sizes.observe(one.node));
  return {
    node: h("section", { "aria-label": "Charts" }, h("h2", {}, "The last minutes"), h("div.charts", {}, all.map((one) => one.node))),
    show({ at, figures }) {
      history.push([at, figures]);
      while (history[0][0] < at - LONGEST_S || history[0][0] > at) history.shift();
      draw();
    },
    end() {
      scheme.removeEventListener("change", draw);
      sizes.disconnect();
    },
  };
}

function chart({ title, value, words, limit, limitName, note }) {
  const now = h("strong");
  const summary = h("p.hint");
  const canvas = h("canvas", { "aria-hidden": "true" });
  const node = h("figure", {}, h("figcaption", {}, h("span", {}, title), now), canvas, summary);

  function draw() {
    if (history.length === 0 || canvas.clientWidth === 0) return;
    const [at, latest] = history[history.length - 1];
    const points = history.map(([when, figures]) => [when, value(figures)]);
    const known = points.map(([, y]) => y).filter((y) => y !== null);
    const bound = limit?.(latest);
    const current = value(latest);
    now.textContent = current === null ? "–" : words(current);
    summary.textContent = [rangeWords(known.map(words), known), bound && `${limitName} ${words(bound)}`, note?.(latest)].filter(Boolean).join("; ");
    plot(canvas, points, at, bound);
  }

  return { node, draw };
}

/** `told` has the words for the values `known`. */
function rangeWords(told, known) {
  if (known.length === 0) return "nothing yet";
  const [least, most] = [Math.min(...known), Math.max(...known)].map((value) => told[known.indexOf(value)]);
  return least === most ? "steady" : `from ${least} to ${most}`;
}

function plot(canvas, points, at, bound) {
  const scale = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, HEIGHT];
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const style = getComputedStyle(canvas);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const top = Math.max(1e-9, bound ?? 0, ...points.map(([, y]) => y ?? 0)) * 1.08;
  const span = Math.max(SHORTEST_S, at - points[0][0]);
  const x = (when) => width - ((at - when) / span) * width;
  const y = (amount) => height - 1.5 - (amount / top) * (height - 3);
  if (bound !== undefined) {
    pen.strokeStyle = style.getPropertyValue("--soft");
    pen.setLineDash([4, 4]);
    pen.beginPath();
    pen.moveTo(0, y(bound));
    pen.lineTo(width, y(bound));
    pen.stroke();
    pen.setLineDash([]);
  }
  pen.strokeStyle = pen.fillStyle = style.getPropertyValue("--accent");
  pen.lineWidth = 1.75;
  pen.lineJoin = "round";
  let before = null;
  pen.beginPath();
  for (const [when, amount] of points) {
    if (amount !== null) {
      if (before === null || when - before > HOLE_S) pen.moveTo(x(when) - 1, y(amount));
      pen.lineTo(x(when), y(amount));
    }
    before = amount === null ? null : when;
  }
  pen.stroke();
}
