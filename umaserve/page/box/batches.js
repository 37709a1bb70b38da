// The batches of who looks: how far each has come, and a button that cancels it.

import { h, refill, shownBy, write } from "../dom.js";
import { batchWords, count } from "./words.js";

/** So many are listed at most, those first that have not ended. */
const LISTED = 20;
const ENDED = new Set(["completed", "failed", "cancelled", "expired"]);
const CAN_BE_CANCELLED = new Set(["validating", "in_progress"]);

/** `cancel(id)` asks for the end of a batch. */
export function batchList(api, cancel) {
  const list = h("ul.items.batches");
  const whose = h("p.hint");
  const node = h("section", { "aria-label": "Batches", hidden: true, tabIndex: -1 }, h("h2", {}, "Batches"), list, whose);
  const show = shownBy(({ id }) => id, ({ id }) => item(id, cancel), list, node);
  let kept = null;
  let asking = false;

  async function ask() {
    // Without a store the list is an error, and browsers note each.
    kept ??= await hasStore(api);
    if (!kept) return;
    const { data, has_more: others } = await api.json("/v1/batches?limit=100");
    data.sort((one, other) => ENDED.has(one.status) - ENDED.has(other.status));
    show(data.slice(0, LISTED));
    const older = others || data.length > LISTED ? " Older ones are not listed." : "";
    write(whose, `Those of your API key, else of your address.${older}`);
    node.hidden = data.length === 0;
  }

  return {
    node,
    show() {
      if (asking) return;
      asking = true;
      // What fails is asked again with the next event, and whether there is one is the stream's to tell.
      ask().catch(() => {}).finally(() => (asking = false));
    },
  };
}

async function hasStore(api) {
  const { settings } = await api.json("/api/settings");
  return settings.some(({ name, value, default: unset }) => name === "store" && value !== unset);
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
      const { total, completed, failed } = batch.request_counts;
      write(about, batchWords(batch));
      write(failures, failed > 0 ? `${count(failed)} failed` : "");
      failures.hidden = failed === 0;
      bar.hidden = total === 0;
      bar.max = total || 1;
      bar.value = completed + failed;
      refill(node, [what, CAN_BE_CANCELLED.has(batch.status) && button], node);
    },
  };
}
