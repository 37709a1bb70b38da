// Pictures, sounds, videos and texts as they are seen and heard.

import { h } from "../dom.js";

const SHOWN_BYTES = 20_000;

/** The node of one medium, {kind, name}, whose content is `blob`. */
export function mediumNode({ kind, name }, blob) {
  if (kind === "text") return textNode(name, blob);
  const src = URL.createObjectURL(blob);
  if (kind !== "image") return h(kind, { src, controls: true, preload: "metadata", "aria-label": name });
  return h("img", { src, alt: name, onload: () => URL.revokeObjectURL(src) });
}

/** Opened, it shows how it begins. */
function textNode(name, blob) {
  const text = h("pre", { tabIndex: 0, role: "group", "aria-label": name });
  const node = h("details.file", {}, h("summary", {}, name), text);
  node.addEventListener("toggle", async () => (text.textContent = await blob.slice(0, SHOWN_BYTES).text()), { once: true });
  return node;
}

/** Fills `place` with the media of a turn; `find(id)` promises the content. */
export async function showMedia(place, media, find) {
  const nodes = media.map(async (medium) => {
    const blob = await find(medium.id);
    return blob ? mediumNode(medium, blob) : h("p.hint", {}, `${medium.name} is not in this browser.`);
  });
  place.replaceChildren(...(await Promise.all(nodes)));
}
