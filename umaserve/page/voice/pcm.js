// Samples as 16-bit numbers in base64, as they go over a session.

const SLICE = 8192;

export function toPcm(samples) {
  const whole = Int16Array.from(samples, (x) => Math.max(-32768, Math.min(32767, Math.round(x * 32768))));
  const bytes = new Uint8Array(whole.buffer);
  let text = "";
  for (let at = 0; at < bytes.length; at += SLICE) text += String.fromCharCode(...bytes.subarray(at, at + SLICE));
  return btoa(text);
}

export function fromPcm(base64) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  return Float32Array.from(new Int16Array(bytes.buffer, 0, bytes.length >> 1), (n) => n / 32768);
}
