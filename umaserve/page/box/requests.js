// Who runs what, and what waits: two tables whose rows stay the same nodes from one event to the next.

import { h } from "../dom.js";
import { count, milliseconds, stateWords, whoWords } from "./words.js";
import { seconds } from "../words.js";

const SURE_MS = 4000;

const RUNNING = [
  ["Who", whoWords],
  ["Dialect", (one) => one.dialect],
  ["Model", (one) => one.model],
  ["Class", (one) => one.class],
  ["State", stateWords],
  ["Tokens", (one) => count(one.tokens)],
  ["Tokens/s", (one) => one.tokens_per_s.toFixed(1)],
  ["Gap (target)", gapWords],
  ["KV cells", (one) => count(one.kv_cells)],
];
const WAITING = [
  ["Who", whoWords],
  ["Dialect", (one) => one.dialect],
  ["Model", (one) => one.model],
  ["Class", (one) => one.class],
  ["For", (one) => seconds(one.age_s * 1000)],
  ["Why", stateWords],
];

function gapWords({ gap_ms: gap, target_gap_ms: target }) {
  return `${milliseconds(gap)} (${milliseconds(target)})`;
}

/** `end(session)` ends a request; returns a promise. */
export function requestTables(end) {
  const running = table("Running requests", "Nothing runs.", RUNNING, end);
  const waiting = table("Waiting requests", "Nothing waits.", WAITING, end);
  const more = h("p.hint", { hidden: true });
  return {
    node: h("section", { "aria-label": "Requests" }, running.node, waiting.node, more),
    show({ requests, not_listed: left }) {
      running.show(requests.filter((one) => one.state !== "waiting"));
      waiting.show(requests.filter((one) => one.state === "waiting"));
      more.hidden = left === 0;
      more.textContent = `${count(left)} more requests are not listed.`;
    },
  };
}

function table(caption, none, columns, end) {
  const rows = new Map();
  const heads = [...columns.map(([name]) => name), ""].map((name) =>
    h("th", { scope: "col", role: "columnheader" }, name === "" ? h("span.hidden", {}, "Action") : name));
  const body = h("tbody", { role: "rowgroup" });
  const empty = h("p.hint", {}, none);
  const whole = h("table.live", { role: "table", "aria-label": caption },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)), body);

  function show(requests) {
    const seen = new Set(requests.map((one) => one.session));
    for (const session of [...rows.keys()]) if (!seen.has(session)) rows.delete(session);
    for (const one of requests) {
      if (!rows.has(one.session)) rows.set(one.session, row(columns, one, end));
      rows.get(one.session).show(one);
    }
    place(body, requests.map((one) => rows.get(one.session).node));
    whole.hidden = requests.length === 0;
    empty.hidden = requests.length > 0;
  }

  show([]);
  return { node: h("div", {}, h("h2", {}, caption), whole, empty), show };
}

/** Makes these the children of `parent`; those that stay are not touched, so that they keep the focus. */
function place(parent, nodes) {
  const gone = [...parent.children].filter((node) => !nodes.includes(node));
  const focused = gone.some((node) => node.contains(document.activeElement));
  gone.forEach((node) => node.remove());
  nodes.forEach((node, i) => {
    if (parent.children[i] !== node) parent.insertBefore(node, parent.children[i] ?? null);
  });
  if (focused) (parent.querySelector("button") ?? parent.closest("main")).focus();
}

function row(columns, { session, ...one }, end) {
  const cells = columns.map(([name]) => h("td", { role: "cell", "data-label": name }));
  const gap = columns.findIndex(([, words]) => words === gapWords);
  const about = `the request of ${whoWords(one)}, number ${session}`;
  const button = h("button", { type: "button", "aria-label": `End ${about}`, onclick: () => press() }, "End");
  let sure = 0;

  // Somebody waits for this answer: one touch must not be enough.
  function press() {
    if (sure === 0) {
      sure = setTimeout(reset, SURE_MS);
      name("Really end?", `Really end ${about}?`);
      return;
    }
    clearTimeout(sure);
    button.disabled = true;
    end(session).finally(() => {
      button.disabled = false;
      reset();
    });
  }

  function reset() {
    sure = 0;
    name("End", `End ${about}`);
  }

  function name(text, label) {
    button.textContent = text;
    button.setAttribute("aria-label", label);
  }

  return {
    node: h("tr", { role: "row", "data-session": String(session) }, cells, h("td", { role: "cell" }, button)),
    show(now) {
      columns.forEach(([, words], i) => {
        const text = words(now);
        if (cells[i].textContent !== text) cells[i].textContent = text;
      });
      cells[gap]?.classList.toggle("late", now.gap_ms > now.target_gap_ms);
    },
  };
}
