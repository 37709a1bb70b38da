// Media as they are sent: which kinds there are, what a model takes of them, and how large they may be.

import { bytes } from "../words.js";
import { newId, path } from "../answers/conversation.js";

/** What a file is read as that is no medium: its text goes with the question, so every model takes it. */
export const TEXT = "text";
const MOST_TEXT_BYTES = 2 ** 20;
/** Browsers take TypeScript for films, and can make no picture of these drawings. */
const CODE = /\.(?:[cm]?tsx?|svg)$/i;
export const KINDS = { image: "pictures", audio: "sounds", video: "videos" };

/** A larger picture is scaled down: the server would do so, and the message is sent again with each turn. */
const MOST_PIXELS = 4_000_000;
const KEPT_BYTES = 1_000_000;
const KEPT_TYPES = ["image/jpeg", "image/png", "image/webp", "image/gif"];
/** What a message has besides its media. */
const REST_BYTES = 512 * 1024;

/** Whether a model of /v1/models takes a kind; where that is not known yet, it may. */
export function takes(model, kind) {
  return model?.architecture?.input_modalities.includes(kind) ?? true;
}

/** A file as {id, kind, name, type, size, blob}; throws where it is of no kind, or can't be read. */
export async function prepared(file) {
  const kind = CODE.test(file.name) ? TEXT : file.type.split("/")[0];
  if (file.size === 0) throw new Error(`${file.name} is empty.`);
  if (!(kind in KINDS)) return textFile(file);
  const blob = kind === "image" ? await picture(file) : file;
  return { id: newId(), kind, name: file.name, type: blob.type, size: blob.size, blob };
}

/** With its `text` beside; throws where it has none. */
async function textFile(file) {
  const text = file.type === "application/pdf" ? await (await import("./attach_pdf.js")).textOfPdf(file) : await plainText(file);
  const blob = new Blob([text], { type: "text/plain" });
  if (blob.size > MOST_TEXT_BYTES) throw new Error(`${file.name} has ${bytes(blob.size)} of text: at most ${bytes(MOST_TEXT_BYTES)} go with a question.`);
  return { id: newId(), kind: TEXT, name: file.name, type: blob.type, size: blob.size, blob, text };
}

async function plainText(file) {
  if (file.size > MOST_TEXT_BYTES) throw new Error(`${file.name} has ${bytes(file.size)}: at most ${bytes(MOST_TEXT_BYTES)} of text go with a question.`);
  const text = new TextDecoder().decode(await file.arrayBuffer());
  // What is no UTF-8 is replaced.
  if (/[\0\ufffd]/.test(text)) throw new Error(`${file.name} is not a text, PDF, picture, sound or video.`);
  return text;
}

async function picture(file) {
  const read = await createImageBitmap(file).catch(() => {
    throw new Error(`The browser can't read ${file.name}.`);
  });
  if (file.size <= KEPT_BYTES && KEPT_TYPES.includes(file.type)) return file;
  const factor = Math.min(1, Math.sqrt(MOST_PIXELS / (read.width * read.height)));
  const canvas = new OffscreenCanvas(Math.ceil(read.width * factor), Math.ceil(read.height * factor));
  const pen = canvas.getContext("2d");
  pen.fillStyle = "white";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(read, 0, 0, canvas.width, canvas.height);
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.9 });
}

/** Why a medium can't go with the next message, in words; null where it can. */
export function problemOf(medium, model, { conversation, attached }, limits) {
  if (medium.kind === TEXT) return null;
  if (!takes(model, medium.kind)) return `${model.id} takes no ${KINDS[medium.kind]}.`;
  const others = [...attached, ...path(conversation).flatMap((turn) => turn.media ?? [])].filter(({ kind }) => kind !== TEXT);
  if (others.length >= limits.media) return `A conversation has at most ${limits.media} pictures, sounds and videos.`;
  const most = Math.floor(((limits.message_bytes - REST_BYTES) * 3) / 4);
  const taken = others.reduce((sum, { size }) => sum + size, 0);
  if (taken + medium.size <= most) return null;
  const left = taken > 0 ? `, and ${bytes(taken)} are taken` : "";
  return `${medium.name} has ${bytes(medium.size)}: this server takes ${bytes(most)} with a conversation${left}.`;
}

export function toBase64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

export function fromBase64(data, type) {
  return new Blob([Uint8Array.from(atob(data), (char) => char.charCodeAt(0))], { type });
}
