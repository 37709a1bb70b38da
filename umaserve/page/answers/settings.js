// What an answer is written by: the settings, their ranges, and presets. `name` is the contract's.

export const SETTINGS = [
  setting("temperature", "Temperature", 0, 2, 0.05, 0.7, "0 is always the likeliest word; higher is wilder"),
  setting("top_p", "Top-p", 0.05, 1, 0.01, 0.95, "only the likeliest words that together have this probability"),
  setting("top_k", "Top-k", 0, 200, 1, 40, "only so many of the likeliest words; 0: all"),
  setting("min_p", "Min-p", 0, 0.5, 0.01, 0.05, "only words at least this likely, next to the likeliest"),
  setting("repetition_penalty", "Repetition penalty", 1, 1.5, 0.01, 1, "above 1, words that were there lately come less often"),
  setting("presence_penalty", "Presence penalty", -2, 2, 0.1, 0, "above 0, new words rather than any that were there"),
  setting("frequency_penalty", "Frequency penalty", -2, 2, 0.1, 0, "above 0, the less the more often they were there"),
  setting("max_tokens", "Length", 0, 4096, 16, 1024, "at most so many tokens in an answer; 0: to its end"),
];
/** More than any context holds: an answer goes to its end, also one that was limited when it began. */
const UNLIMITED = 2 ** 24;
/** What can't be changed any more once an answer is being written. */
const OPTIONS = ["enable_thinking", "reasoning_budget"];

function setting(name, title, least, most, step, first, hint) {
  return { name, title, least, most, step, first, hint };
}

export function defaults() {
  return Object.fromEntries(SETTINGS.map(({ name, first }) => [name, first]));
}

/** Settings as the contract's parameters: {parameters, options}. Those that nobody has set are left to the server. */
export function asAsked(settings) {
  const set = Object.entries(settings).filter(([, value]) => value !== null && value !== undefined);
  const parameters = Object.fromEntries(set.filter(([name]) => !OPTIONS.includes(name)));
  if (parameters.max_tokens === 0) parameters.max_tokens = UNLIMITED;
  return { parameters, options: Object.fromEntries(set.filter(([name]) => OPTIONS.includes(name))) };
}

export function titleOf(name) {
  return SETTINGS.find((setting) => setting.name === name)?.title ?? name;
}

const PROGRAMMER = "You are an experienced programmer. Show code in blocks, and explain it in a few sentences.";
const TEACHER = "You are a patient teacher. Explain step by step, in plain words, with an example.";
const PRESETS = [
  { name: "Balanced", settings: {}, system: "" },
  { name: "Exact", settings: { temperature: 0 }, system: "Answer briefly and exactly. Say so where you do not know." },
  { name: "Inventive", settings: { temperature: 1.2, min_p: 0.1 }, system: "" },
  { name: "Programmer", settings: { temperature: 0.2 }, system: PROGRAMMER },
  { name: "Teacher", settings: { temperature: 0.6 }, system: TEACHER },
];
const OWN = "umaserve.presets";

/** All presets: those of the page, and those that somebody saved in this browser. */
export function presets(storage) {
  const own = JSON.parse(storage.getItem(OWN) ?? "[]");
  return [...PRESETS.map((preset) => ({ ...preset, settings: { ...defaults(), ...preset.settings } })), ...own];
}

/** Keeps a preset; one of the same name is replaced. */
export function savePreset(storage, preset) {
  const own = JSON.parse(storage.getItem(OWN) ?? "[]").filter(({ name }) => name !== preset.name);
  storage.setItem(OWN, JSON.stringify([...own, preset]));
}
