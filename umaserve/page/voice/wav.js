// Samples as a WAV file: mono, 16 bit.

/** `parts` are lists of samples from -1 to 1, `rate` how many make a second. */
export function wav(parts, rate) {
  const size = parts.reduce((sum, part) => sum + 2 * part.length, 0);
  const head = new DataView(new ArrayBuffer(44));
  const ascii = (at, text) => [...text].forEach((char, i) => head.setUint8(at + i, char.charCodeAt(0)));
  ascii(0, "RIFF");
  head.setUint32(4, 36 + size, true);
  ascii(8, "WAVEfmt ");
  head.setUint32(16, 16, true);
  head.setUint16(20, 1, true);
  head.setUint16(22, 1, true);
  head.setUint32(24, rate, true);
  head.setUint32(28, 2 * rate, true);
  head.setUint16(32, 2, true);
  head.setUint16(34, 16, true);
  ascii(36, "data");
  head.setUint32(40, size, true);
  const whole = parts.map((part) => Int16Array.from(part, (n) => Math.max(-32768, Math.min(32767, Math.round(n * 32768)))));
  return new Blob([head, ...whole], { type: "audio/wav" });
}
