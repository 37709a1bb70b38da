// What a microphone hears, as samples of the rate that a session takes.

/** Calls `take(samples)` with each piece, at `rate` samples a second. Returns what ends it. */
export async function listen(stream, rate, take) {
  // Some browsers connect a microphone to a context of its own rate only.
  const context = new AudioContext();
  await context.audioWorklet.addModule("/page/voice/capture.js");
  const capture = new AudioWorkletNode(context, "capture");
  const resample = resampler(context.sampleRate / rate);
  capture.port.onmessage = ({ data }) => take(resample(data));
  context.createMediaStreamSource(stream).connect(capture);
  // Of silence; without it nothing is asked for.
  capture.connect(context.destination);
  return () => context.close();
}

/** Makes one sample of `ratio`, their mean, piece by piece. */
function resampler(ratio) {
  let [read, end, sum, count] = [0, ratio, 0, 0];
  return (samples) => {
    const made = [];
    for (const sample of samples) {
      sum += sample;
      count += 1;
      for (read += 1; read >= end; end += ratio) {
        made.push(count > 0 ? sum / count : sample);
        [sum, count] = [0, 0];
      }
    }
    return Float32Array.from(made);
  };
}

/** How loud samples are, from 0 to 1: loudness is heard by its logarithm, from -60 dB on. */
export function loudness(samples) {
  const mean = samples.reduce((sum, x) => sum + x * x, 0) / Math.max(1, samples.length);
  return Math.max(0, 1 + Math.log10(Math.sqrt(mean) + 1e-9) / 3);
}
