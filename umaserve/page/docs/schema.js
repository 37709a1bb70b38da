// What a JSON schema says: in words, as a tree that opens level by level (some hold themselves), and as an example.

import { h } from "../dom.js";

const DEEPEST = 8;
const LIMITS = {
  ...{ minimum: "at least #", exclusiveMinimum: "more than #", maximum: "at most #", exclusiveMaximum: "less than #" },
  ...{ minLength: "at least # characters", maxLength: "at most # characters", pattern: "like #", format: "#" },
  ...{ minItems: "at least # items", maxItems: "at most # items", default: "default #" },
};

/** Reads schemas of `document`: `text` makes the nodes of a description. */
export function schemaReader(document, text) {
  /** What a reference stands for; anything else as it is. */
  function follow(value) {
    if (value?.$ref === undefined) return value ?? {};
    const { $ref, ...own } = value;
    const steps = $ref.slice(2).split("/").map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"));
    return { ...follow(steps.reduce((at, step) => at?.[step], document)), ...own };
  }

  /** The schema without references and allOf. */
  function whole(schema) {
    const { allOf = [], ...own } = follow(schema);
    return [...allOf.map(whole), own].reduce((all, part) => ({
      ...all,
      ...part,
      properties: { ...all.properties, ...part.properties },
      required: [...(all.required ?? []), ...(part.required ?? [])],
    }), {});
  }

  const choices = ({ oneOf, anyOf }) => oneOf ?? anyOf ?? [];
  const hasFields = ({ properties }) => Object.keys(properties).length > 0;

  function type(schema) {
    const found = whole(schema);
    if ("const" in found) return JSON.stringify(found.const);
    if (found.enum) return found.enum.map((value) => JSON.stringify(value)).join(" | ");
    if (schema.$ref && (hasFields(found) || choices(found).length > 0)) return schema.$ref.split("/").pop();
    const types = [found.type ?? []].flat().map((name) => (name === "array" && found.items ? `array of ${type(found.items)}` : name));
    return [...new Set(types.length > 0 ? types : choices(found).map(type))].join(" or ") || "anything";
  }

  /** Whether there is more to show than the type. */
  function opens(schema, depth = 0) {
    const found = whole(schema);
    const inner = [found.items, found.additionalProperties, ...choices(found)].filter((each) => each?.constructor === Object);
    return hasFields(found) || (depth < DEEPEST && inner.some((each) => opens(each, depth + 1)));
  }

  /** A choice by the constant that tells it from the others, or else by its type. */
  function choiceName(schema) {
    const tells = Object.entries(whole(schema).properties).find(([, field]) => "const" in field);
    return tells ? `${tells[0]}: ${JSON.stringify(tells[1].const)}` : type(schema);
  }

  function entry(name, schema, required = false) {
    const found = whole(schema);
    const limits = Object.entries(LIMITS).filter(([key]) => found[key] !== undefined).map(([key, words]) =>
      words.replace("#", () => (typeof found[key] === "string" ? found[key] : JSON.stringify(found[key]))));
    const head = h("p.field", {}, h("code", {}, name), " ", h("span.type", {}, type(schema)), required && h("span.required", {}, " required"));
    const inside = opens(schema) && folded(`Inside ${name}`, () => tree(schema));
    return h("li", {}, head, found.description && text(found.description), limits.length > 0 && h("p.hint", {}, limits.join(", ")), inside);
  }

  function tree(schema) {
    const found = whole(schema);
    const fields = Object.entries(found.properties).map(([name, field]) => entry(name, field, found.required.includes(name)));
    const others = found.additionalProperties?.constructor === Object && entry("any other name", found.additionalProperties);
    const some = choices(found).filter((each) => opens(each));
    return [
      (fields.length > 0 || others) && h("ul.fields", {}, fields, others),
      found.items && opens(found.items) && tree(found.items),
      some.length === 1 ? tree(some[0]) : some.map((each) => folded(choiceName(each), () => tree(each))),
    ];
  }

  function example(schema, depth = 0) {
    const found = whole(schema);
    const known = [found.const, found.default, found.enum?.[0]].find((value) => value !== undefined && value !== null);
    if (known !== undefined) return known;
    if (depth > DEEPEST) return null;
    const kind = [found.type].flat()[0];
    if (kind === "array") return found.items ? [example(found.items, depth + 1)] : [];
    if (kind === "object" || hasFields(found)) {
      return Object.fromEntries(found.required.map((name) => [name, example(found.properties[name] ?? {}, depth + 1)]));
    }
    if (choices(found).length > 0) return example(choices(found)[0], depth + 1);
    return { string: "Hello", integer: found.minimum ?? 1, number: found.minimum ?? 1, boolean: false }[kind] ?? null;
  }

  /** Bodies to begin with, [name, value]: those that the document has, or else one for each choice. */
  function examples({ schema, examples: given }) {
    if (given) return Object.entries(given).map(([name, each]) => [name, follow(each).value]);
    const some = choices(whole(schema)).filter((each) => hasFields(whole(each)));
    return some.length > 0 ? some.map((each) => [choiceName(each), example(each)]) : [["example", example(schema)]];
  }

  return { follow, whole, type, tree, opens, entry, examples };
}

/** Something that is made when it is opened first. */
export function folded(title, make, props = {}) {
  const fill = () => node.open && node.children.length === 1 && node.append(h("div.inside", {}, make()));
  const node = h("details", { ...props, ontoggle: fill }, h("summary", {}, title));
  return node;
}
