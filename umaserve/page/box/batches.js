// Batches of all clients: how far each has come, and a button that cancels it.

import { h, refill, shownBy, write } from "../dom.js";
import { batchWords, count } from "./words.js";

const CAN_BE_CANCELLED = new Set(["validating", "in_progress"]);

/** `cancel(id)` asks for the end of a batch. */
export function batchList(cancel) {
  const list = h("ul.items.batches");
  const node = h("section", { "aria-label": "Batches", hidden: true, tabIndex: -1 }, h("h2", {}, "Batches"), list);
  const show = shownBy(({ batch }) => batch, ({ batch }) => item(batch, cancel), list, node);
  return {
    node,
    show({ batches }) {
      show(batches);
      node.hidden = batches.length === 0;
    },
  };
}

function item(id, cancel) {
  const short = `${id.slice(0, 14)}…`;
  const about = h("span.about");
  const failures = h("span.late");
  const bar = h("progress", { "aria-label": `Progress of ${short}` });
  const what = h("span.who", {}, h("strong", { title: id }, short), about, failures, bar);
  const button = h("button", { "aria-label": `Cancel ${short}`, onclick: press }, "Cancel");
  const node = h("li", { "data-batch": id, tabIndex: -1 }, what, button);

  // What has not run by then never does: one touch must not be enough.
  function press() {
    if (confirm(`Really cancel the batch ${id}?`)) cancel(id);
  }

  return {
    node,
    show(batch) {
      const { total, completed, failed, problem } = batch;
      write(about, batchWords(batch));
      write(failures, problem ?? (failed > 0 ? `${count(failed)} failed` : ""));
      failures.hidden = failed === 0 && problem === null;
      bar.hidden = total === 0;
      bar.max = total || 1;
      bar.value = completed + failed;
      refill(node, [what, CAN_BE_CANCELLED.has(batch.status) && button], node);
    },
  };
}
