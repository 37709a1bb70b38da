// Who runs what, and what waits: two tables whose rows stay the same nodes from one event to the next.

import { h, shownBy, write } from "../dom.js";
import { count, milliseconds, stateWords, whoWords } from "./words.js";
import { seconds } from "../words.js";

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
  const heads = [...columns.map(([name]) => name), ""].map((name) =>
    h("th", { scope: "col", role: "columnheader" }, name === "" ? h("span.hidden", {}, "Action") : name));
  const body = h("tbody", { role: "rowgroup" });
  const empty = h("p.hint", {}, none);
  const whole = h("table.live", { role: "table", "aria-label": caption },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)), body);
  const node = h("div", { tabIndex: -1 }, h("h2", {}, caption), whole, empty);
  const list = shownBy(({ session }) => session, (one) => row(columns, one, end), body, node);

  function show(requests) {
    list(requests);
    whole.hidden = requests.length === 0;
    empty.hidden = requests.length > 0;
  }

  show([]);
  return { node, show };
}

function row(columns, { session, ...one }, end) {
  const cells = columns.map(([name]) => h("td", { role: "cell", "data-label": name }));
  const gap = columns.findIndex(([, words]) => words === gapWords);
  const about = `the request of ${whoWords(one)}, number ${session}`;
  const button = h("button", { "aria-label": `End ${about}`, onclick: press }, "End");

  // Somebody waits for this answer: one touch must not be enough.
  function press() {
    if (!confirm(`Really end ${about}?`)) return;
    button.disabled = true;
    end(session).finally(() => (button.disabled = false));
  }

  return {
    node: h("tr", { role: "row", "data-session": String(session) }, cells, h("td", { role: "cell" }, button)),
    show(now) {
      columns.forEach(([, words], i) => write(cells[i], words(now)));
      cells[gap]?.classList.toggle("late", now.gap_ms > now.target_gap_ms);
    },
  };
}
