// Pictures, sounds and videos as they are seen and heard.

import { h } from "../dom.js";

/** The node of one medium, {kind, name}, whose content is `blob`. */
export function mediumNode({ kind, name }, blob) {
  const src = URL.createObjectURL(blob);
  if (kind !== "image") return h(kind, { src, controls: true, preload: "metadata", "aria-label": name });
  return h("img", { src, alt: name, onload: () => URL.revokeObjectURL(src) });
}

/** Fills `place` with the media of a turn; `find(id)` promises the content. */
export async function showMedia(place, media, find) {
  const nodes = media.map(async (medium) => {
    const blob = await find(medium.id);
    return blob ? mediumNode(medium, blob) : h("p.hint", {}, `${medium.name} is not in this browser.`);
  });
  place.replaceChildren(...(await Promise.all(nodes)));
}
