// The box: who runs what, what waits and why, batches, models, charts, settings; live while it is looked at.

import { h, loadStyle } from "../dom.js";
import { batchList } from "./batches.js";
import { charts } from "./charts.js";
import { modelList } from "./models.js";
import { requestTables } from "./requests.js";
import { settingsFold } from "./settings.js";
import { watchBox } from "./stream.js";
import { lostWords } from "./words.js";

await loadStyle("/page/box/style.css");

export function mount(root, app, signal) {
  const lost = h("p.problem", { role: "alert" });
  const change = h("button", { onclick: () => ((app.api.key = ""), app.api.refused()), hidden: true }, "Change the key");
  const notice = h("p.hint", { role: "status" });
  const requests = requestTables((session) => post("/api/box/end", { session }, `Request ${session} is ended.`));
  const models = modelList((path, model) => post(path, { model }, ""));
  const batches = batchList((batch) => post("/api/box/end", { batch }, `The batch ${batch} is cancelled.`));
  const parts = [requests, batches, models, charts()];
  const shown = h("div.parts", { hidden: true }, parts.map((part) => part.node), settingsFold(app.api));
  app.bar.end.replaceChildren(change);
  root.replaceChildren(h("main.box", {}, h("div.page", {}, lost, notice, shown)));

  async function post(path, body, done) {
    const headers = { "Content-Type": "application/json" };
    try {
      await app.api.fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
      notice.textContent = done;
    } catch (error) {
      notice.textContent = error.message;
    }
  }

  watchBox(app.api, signal, {
    event(box) {
      lost.textContent = "";
      change.hidden = true;
      shown.hidden = false;
      for (const part of parts) part.show(box);
    },
    lost(error) {
      lost.textContent = lostWords(error);
      change.hidden = error?.status !== 403 || !app.api.key;
      if (error?.status === 403 || error?.status === 401) shown.hidden = true;
    },
  });
}
