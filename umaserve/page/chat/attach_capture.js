// A picture by the camera, or a recording by the microphone, in a dialog that shows what they get.

import { h } from "../dom.js";
import { seconds } from "../words.js";

const WANTED = { image: { video: { facingMode: "environment" } }, audio: { audio: true } };
const DENIED = { image: "The browser gives this page no camera.", audio: "The browser gives this page no microphone." };

/** Promises a file, or null where nobody wants it any more; `tell` says why there is none. */
export async function captured(kind, tell) {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia(WANTED[kind]);
  } catch (error) {
    tell(`${DENIED[kind]} It says: ${error.message}.`);
    return null;
  }
  const { title, done, node, finish, end } = kind === "image" ? camera(stream) : microphone(stream);
  return new Promise((resolve) => {
    const close = (file) => {
      end?.();
      for (const track of stream.getTracks()) track.stop();
      dialog.remove();
      resolve(file);
    };
    const cancel = h("button", { onclick: () => close(null) }, "Cancel");
    const take = h("button.primary", { onclick: async () => close(await finish()) }, done);
    // Escape is for the dialog alone.
    const own = (event) => event.stopPropagation();
    const dialog = h("dialog.capture", { "aria-label": title, oncancel: () => close(null), onkeydown: own },
      h("h2", {}, title), node, h("div.row", {}, cancel, take));
    document.body.append(dialog);
    dialog.showModal();
    take.focus();
  });
}

function named(blob, kind) {
  const at = new Date().toTimeString().slice(0, 8).replaceAll(":", ".");
  return new File([blob], `${kind} ${at}`, { type: blob.type.split(";")[0] });
}

function camera(stream) {
  const node = h("video", { srcObject: stream, autoplay: true, muted: true, playsInline: true, "aria-label": "What the camera sees" });
  const finish = async () => {
    const canvas = new OffscreenCanvas(node.videoWidth, node.videoHeight);
    canvas.getContext("2d").drawImage(node, 0, 0);
    return named(await canvas.convertToBlob({ type: "image/jpeg", quality: 0.92 }), "Picture");
  };
  return { title: "Camera", done: "Take the picture", node, finish };
}

/** Records, from now on. `finish()` promises the file, `end()` stops without or after it; `node` shows level and length. */
function microphone(stream) {
  const level = h("meter", { min: 0, max: 1, "aria-label": "Level" });
  const length = h("output");
  const context = new AudioContext();
  const analyser = context.createAnalyser();
  const samples = new Float32Array(analyser.fftSize);
  const recorder = new MediaRecorder(stream);
  const begun = performance.now();
  const parts = [];
  context.createMediaStreamSource(stream).connect(analyser);
  recorder.ondataavailable = ({ data }) => parts.push(data);
  recorder.start();
  const timer = setInterval(() => {
    analyser.getFloatTimeDomainData(samples);
    // Loudness is heard by its logarithm: from -60 dB on.
    const loudness = Math.sqrt(samples.reduce((sum, x) => sum + x * x, 0) / samples.length);
    level.value = Math.max(0, 1 + Math.log10(loudness + 1e-9) / 3);
    length.textContent = seconds(performance.now() - begun);
  }, 50);
  const finish = () => new Promise((resolve) => {
    recorder.onstop = () => resolve(named(new Blob(parts, { type: recorder.mimeType }), "Recording"));
    recorder.stop();
  });
  const end = () => {
    clearInterval(timer);
    context.close();
  };
  return { title: "Recording", done: "Attach the recording", node: h("div.row", {}, level, length), finish, end };
}
