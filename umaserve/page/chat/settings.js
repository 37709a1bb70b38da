// What an answer is written by: the settings, their ranges, and presets. `name` is the contract's.

export const SETTINGS = [
  { name: "temperature", title: "Temperature", least: 0, most: 2, step: 0.05, first: 0.7, hint: "0 is always the likeliest word; higher is wilder" },
  { name: "top_p", title: "Top-p", least: 0.05, most: 1, step: 0.01, first: 0.95, hint: "only the likeliest words that together have this probability" },
  { name: "min_p", title: "Min-p", least: 0, most: 0.5, step: 0.01, first: 0.05, hint: "only words at least this likely, next to the likeliest" },
  { name: "repetition_penalty", title: "Repetition penalty", least: 1, most: 1.5, step: 0.01, first: 1, hint: "above 1, words that were there lately come less often" },
  { name: "presence_penalty", title: "Presence penalty", least: -2, most: 2, step: 0.1, first: 0, hint: "above 0, new words rather than any that were there" },
  { name: "frequency_penalty", title: "Frequency penalty", least: -2, most: 2, step: 0.1, first: 0, hint: "above 0, the less the more often they were there" },
  { name: "max_tokens", title: "Length", least: 16, most: 4096, step: 16, first: 1024, hint: "at most so many tokens in an answer" },
];

export function defaults() {
  return Object.fromEntries(SETTINGS.map(({ name, first }) => [name, first]));
}

export function titleOf(name) {
  return SETTINGS.find((setting) => setting.name === name)?.title ?? name;
}

const PRESETS = [
  { name: "Balanced", settings: {}, system: "" },
  { name: "Exact", settings: { temperature: 0 }, system: "Answer briefly and exactly. Say so where you do not know." },
  { name: "Inventive", settings: { temperature: 1.2, min_p: 0.1 }, system: "" },
  { name: "Programmer", settings: { temperature: 0.2 }, system: "You are an experienced programmer. Show code in blocks with their language, and explain it in a few sentences." },
  { name: "Teacher", settings: { temperature: 0.6 }, system: "You are a patient teacher. Explain step by step, in plain words, with an example." },
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
