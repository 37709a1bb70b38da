// What goes with the next message: where it comes from, whether it may go, and what it looks like.

import { fill, h, icon, iconButton, shownBy, write } from "../dom.js";
import { bytes } from "../words.js";
import { mediumNode } from "./attach_shown.js";
import { quoted } from "../answers/conversation.js";
import { KINDS, TEXT, prepared, problemOf, takes } from "./attach_media.js";

/** Fills `place`, beside the composer. `toggle()` shows the sources, `add(files)` attaches files. */
export function attachments(place, store, actions, app) {
  const { state } = store;
  const note = h("p.hint", { id: "attach-note", role: "status" });
  const sources = h("div.row.sources", { role: "group", "aria-label": "Attach" });
  const previews = h("ul.previews", { "aria-label": "Attached" });
  const preview = shownBy((medium) => medium, previewOf, previews, place.closest("form").querySelector("textarea"));
  let listed = "";
  fill(place, previews, sources, note);
  sources.hidden = note.hidden = true;

  const model = () => {
    const { models } = app.store.state;
    return models.find(({ id }) => id === state.conversation.model) ?? models[0];
  };

  function pick(kind, capture) {
    const input = h("input", { type: "file", accept: kind && `${kind}/*`, multiple: !capture, capture });
    input.addEventListener("change", () => add(input.files));
    input.click();
  }

  /** By the camera or the microphone, where the browser gives them to this page; else by what the system offers. */
  async function capture(kind) {
    if (!navigator.mediaDevices) return pick(kind, "environment");
    const { captured } = await import("./attach_capture.js");
    const file = await captured(kind, actions.tell);
    return file && add([file]);
  }

  async function add(files) {
    for (const file of files) {
      try {
        const medium = await prepared(file);
        const problem = problemOf(medium, model(), state, app.store.state.limits);
        if (problem) actions.tell(problem);
        else {
          actions.attach(medium);
          if (medium.kind === TEXT) countTokens(medium);
        }
      } catch (error) {
        actions.tell(error.message);
      }
    }
  }

  /** So that one knows before sending what a text takes of the context. */
  async function countTokens(medium) {
    const body = JSON.stringify({ model: model()?.id, content: quoted(medium.name, medium.text) });
    const headers = { "Content-Type": "application/json" };
    try {
      const { tokens } = await (await app.api.fetch("/tokenize", { method: "POST", headers, body })).json();
      medium.tokens = tokens.length;
    } catch (error) {
      actions.tell(`${medium.name}: ${error.message}`);
    }
    store.update(() => {});
  }

  function source(name, label, kind, act) {
    const problem = kind === TEXT || takes(model(), kind) ? null : whyNot([kind]);
    const refused = { "aria-disabled": "true", "aria-describedby": note.id, title: problem };
    return h("button.quiet", { onclick: problem ? null : act, ...(problem && refused) }, icon(name), label);
  }

  function whyNot(kinds) {
    const words = new Intl.ListFormat("en-GB", { type: "disjunction" }).format(kinds.map((kind) => KINDS[kind]));
    return `${model().id} takes no ${words}: its server runs it without a projector for them.`;
  }

  function listSources() {
    const key = JSON.stringify(model() ?? "");
    if (key === listed) return;
    listed = key;
    fill(sources, source("clip", "Text, code, PDF", TEXT, () => pick("")),
      source("picture", "Picture", "image", () => pick("image")), source("camera", "Camera", "image", () => capture("image")),
      source("wave", "Sound", "audio", () => pick("audio")), source("microphone", "Record", "audio", () => capture("audio")),
      source("film", "Video", "video", () => pick("video")));
    const not = Object.keys(KINDS).filter((kind) => !takes(model(), kind));
    note.textContent = not.length > 0 ? whyNot(not) : "";
  }

  function previewOf(medium) {
    const about = h("span.hint");
    const remove = iconButton("close", `Remove ${medium.name}`, () => actions.detach(medium));
    return {
      node: h("li", { title: medium.name }, mediumNode(medium, medium.blob), about, remove),
      show({ name, size, tokens }) {
        const taken = tokens === undefined ? "" : `, ${tokens.toLocaleString("en-GB")} tokens`;
        write(about, `${name}, ${bytes(size)}${taken}`);
      },
    };
  }

  function show() {
    listSources();
    preview(state.attached);
    previews.hidden = state.attached.length === 0;
  }

  store.subscribe(show);
  app.store.subscribe(show);
  return {
    add,
    /** Returns whether they are to be seen now. */
    toggle() {
      sources.hidden = note.hidden = !sources.hidden;
      if (!sources.hidden) sources.querySelector("button").focus();
      return !sources.hidden;
    },
  };
}
