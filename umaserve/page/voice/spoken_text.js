// What of a growing text can be spoken already: whole sentences, without code. The daemon takes the other marks away.

/** Most characters of a part; the daemon takes 4,096. */
const MOST = 3000;
/** Not after short words, which may be abbreviations. */
const SENTENCE_END = /(?:[\p{L}\p{N}]{3}["'”’»)\]*_]*[.…]|[!?])["'”’»)\]*_]*\s|[。！？\n]/gu;

/** The beginning of `text` to speak next: {length, words}, of length 0 where more text has to come first. */
export function nextPart(text, isOver) {
  const plain = withoutCode(text);
  if (isOver && plain.length <= MOST) return { length: text.length, words: plain.trim() };
  const window = plain.slice(0, MOST);
  let length = 0;
  for (const end of window.matchAll(SENTENCE_END)) length = end.index + end[0].length;
  if (length === 0 && plain.length > MOST) length = window.lastIndexOf(" ") + 1 || MOST;
  return { length, words: window.slice(0, length).trim() };
}

/** The text with blanks in place of code blocks, up to one that goes on. */
function withoutCode(text) {
  let [plain, from, fence] = ["", 0, ""];
  for (const { 0: run, index } of text.matchAll(/`{3,}|~{3,}/g)) {
    const end = index + run.length;
    if (!fence) {
      plain += text.slice(from, index);
      [from, fence] = [index, run];
    } else if (run.startsWith(fence)) {
      plain += "\n".padStart(end - from);
      [from, fence] = [end, ""];
    }
  }
  return fence ? plain : plain + text.slice(from);
}
