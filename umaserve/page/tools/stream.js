// What comes in the body of a reply, piece by piece and bounded.

const MOST_BYTES = 4 * 2 ** 20;

async function* texts(body) {
  if (!body) return;
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let size = 0;
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      size += piece.value.length;
      if (size > MOST_BYTES) throw new Error(`Its reply has more than ${MOST_BYTES / 2 ** 20} MiB.`);
      yield decoder.decode(piece.value, { stream: true });
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** All of it, as text. */
export async function wholeText(body) {
  let whole = "";
  for await (const text of texts(body)) whole += text;
  return whole;
}

/** The data of each server-sent event that has any. */
export async function* events(body) {
  let [left, data] = ["", []];
  for await (const text of texts(body)) {
    const lines = (left + text).split(/\r\n|\n|\r(?=[^\n])/);
    left = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      else if (line === "" && data.length > 0) {
        const whole = data.join("\n");
        data = [];
        if (whole) yield whole;
      }
    }
  }
}
