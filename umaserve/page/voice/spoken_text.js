// What of a growing text can be spoken already: whole sentences, without code. The daemon takes the other marks away.

/** At most 600 characters, some 40 s of speech, and the code among them, each of whose characters is a form feed. */
const PART = /^(?:\f*[^\f]){0,600}/;
/** Not after short words, which may be abbreviations. */
const SENTENCE_END = /(?:[\p{L}\p{N}]{3}["'”’»)\]*_]*[.…]|[!?])["'”’»)\]*_]*\s|[。！？\n]/gu;

/** The beginning of `text` to speak next: {length, words}, of length 0 where more text has to come first. */
export function nextPart(text, isOver) {
  const plain = withoutCode(text);
  const [part] = plain.match(PART);
  if (isOver && part === plain) return { length: text.length, words: words(plain) };
  let length = 0;
  for (const end of part.matchAll(SENTENCE_END)) length = end.index + end[0].length;
  if (length === 0 && part !== plain) length = part.lastIndexOf(" ") + 1 || part.length;
  return { length, words: words(part.slice(0, length)) };
}

function words(plain) {
  return plain.replace(/\f+/g, "").trim();
}

/** The text with form feeds and a line's end in place of code blocks, up to one that goes on. */
function withoutCode(text) {
  let [plain, from, fence] = ["", 0, ""];
  for (const { 0: run, index } of text.matchAll(/`{3,}|~{3,}/g)) {
    const end = index + run.length;
    if (!fence) {
      plain += said(text.slice(from, index));
      [from, fence] = [index, run];
    } else if (run.startsWith(fence)) {
      plain += "\n".padStart(end - from, "\f");
      [from, fence] = [end, ""];
    }
  }
  return fence ? plain : plain + said(text.slice(from));
}

function said(text) {
  return text.replaceAll("\f", " ");
}
