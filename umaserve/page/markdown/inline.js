// The lines of a paragraph to spans: plain data. Linear in the text's length, whatever stands in it.
//
// A span is {type: "text" | "code", at, text}, {type: "math", at, text, tex, display}, {type: "br"},
// {type: "strong" | "em" | "del", spans} or {type: "link", href, spans}.

const MAX_OPEN = 12;
const MAX_TARGET = 2048;
const KINDS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };
const SPECIAL = /[\\`*_~[\]!$&<]|https?:\/\//g;
const TARGET = /^\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"]*")?\s*\)/;
/** How formulas begin and end, besides those between two dollars. */
const FORMULAS = { "\\(": "\\)", "\\[": "\\]", $$: "$$" };
const IN_DOLLARS = /^\$((?:\\.|[^\\$]){1,400})\$(?!\d)/;
const BREAK = /^<br *\/?>/i;
const ADDRESS = /^<((?:https?:\/\/|mailto:)[^\s<>]+|[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+)>/i;
const ENTITY = /^&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w{2,8}));/i;
const ENTITIES = {
  ...{ amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™", deg: "°", para: "¶" },
  ...{ sect: "§", middot: "·", bull: "•", hellip: "…", ndash: "–", mdash: "—", lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”" },
  ...{ laquo: "«", raquo: "»", times: "×", divide: "÷", plusmn: "±", frac12: "½", frac14: "¼", sup2: "²", sup3: "³", micro: "µ" },
  ...{ le: "≤", ge: "≥", ne: "≠", asymp: "≈", infin: "∞", larr: "←", rarr: "→", uarr: "↑", darr: "↓", harr: "↔", check: "✓" },
  ...{ alpha: "α", beta: "β", gamma: "γ", delta: "δ", lambda: "λ", mu: "μ", pi: "π", sigma: "σ", omega: "ω", Omega: "Ω", Delta: "Δ" },
  ...{ euro: "€", pound: "£", yen: "¥", cent: "¢", szlig: "ß", auml: "ä", ouml: "ö", uuml: "ü", Auml: "Ä", Ouml: "Ö", Uuml: "Ü" },
};
const URL_TEXT = /^https?:\/\/[^\s<>"'`*\\|]+/;

export function parseInline(lines) {
  const spans = [];
  const open = [];
  lines.forEach((line, number) => {
    if (number > 0) add({ type: "text", at: line.at, text: "\n" });
    scan(line);
  });
  while (open.length > 0) giveUp();
  return spans;

  function add(span) {
    const to = open.length > 0 ? open[open.length - 1].spans : spans;
    to.push(span);
  }

  /** The innermost mark was no mark: it is text. */
  function giveUp() {
    const { mark, at, spans: inside } = open.pop();
    add({ type: "text", at, text: mark });
    inside.forEach(add);
  }

  function scan({ at, text }) {
    const ticks = ticksOf(text);
    const marks = new Map();
    let from = 0;
    let links = open.filter(({ mark }) => mark === "[").length;
    const flush = (to) => {
      if (to > from) add({ type: "text", at: at + from, text: text.slice(from, to) });
    };
    const take = (i, length) => {
      flush(i);
      from = i + length;
      SPECIAL.lastIndex = from;
    };
    SPECIAL.lastIndex = 0;
    for (let match; (match = SPECIAL.exec(text)); ) {
      const i = match.index;
      const char = text[i];
      if ((char === "\\" || char === "$") && formula(i)) continue;
      if (char === "\\") {
        if (/[!-/:-@[-`{-~]/.test(text[i + 1] ?? "")) {
          take(i, 1);
          SPECIAL.lastIndex = i + 2;
        }
      } else if (char === "`") {
        const { length, end } = ticks.get(i);
        if (end === undefined) SPECIAL.lastIndex = i + length;
        else {
          take(i, end + length - i);
          add({ type: "code", at: at + i + length, text: text.slice(i + length, end) });
        }
      } else if (char === "&") {
        const whole = ENTITY.exec(text.slice(i, i + 10));
        const decoded = whole && characterOf(whole);
        if (!decoded) continue;
        take(i, whole[0].length);
        add({ type: "text", at: at + i, text: decoded });
      } else if (char === "<") {
        const piece = text.slice(i, i + MAX_TARGET);
        const [broken, found] = [BREAK.exec(piece), ADDRESS.exec(piece)];
        const href = found && safeLink(/^(https?|mailto):/i.test(found[1]) ? found[1] : `mailto:${found[1]}`);
        if (broken) {
          take(i, broken[0].length);
          add({ type: "br" });
        } else if (href && links === 0) {
          take(i, found[0].length);
          add({ type: "link", href, spans: [{ type: "text", at: at + i + 1, text: found[1] }] });
        }
      } else if (char === "h") {
        const found = (URL_TEXT.exec(text.slice(i, i + MAX_TARGET))?.[0] ?? "").replace(/[.,;:!?)\]]+$/, "");
        const href = safeLink(found);
        if (links > 0 || href === null) continue;
        take(i, found.length);
        add({ type: "link", href, spans: [{ type: "text", at: at + i, text: found }] });
      } else if (char === "[" || char === "!") {
        if (char === "!" && text[i + 1] !== "[") continue;
        if (open.length >= MAX_OPEN) continue;
        const mark = char === "!" ? "![" : "[";
        take(i, mark.length);
        open.push({ mark, at: at + i, spans: [] });
        links += 1;
      } else if (char === "]") {
        const opened = open.findLastIndex(({ mark }) => mark.endsWith("["));
        if (opened < 0) continue;
        links -= 1;
        const target = text[i + 1] === "(" ? TARGET.exec(text.slice(i + 1, i + 1 + MAX_TARGET)) : null;
        const href = target ? safeLink(target[1]) : null;
        flush(i);
        from = i;
        while (open.length > opened + 1) giveUp();
        if (href === null) {
          giveUp();
          continue;
        }
        from = i + 1 + target[0].length;
        SPECIAL.lastIndex = from;
        const { mark, spans: inside } = open.pop();
        add({ type: "link", href, image: mark === "![", spans: inside });
      } else if (char !== "$") emphasis(text, at, i, take, char);
    }
    flush(text.length);

    function formula(i) {
      const begin = text.slice(i, i + 2);
      const close = FORMULAS[begin];
      const end = close && next(close, i + 2);
      const whole = close ? text.slice(i, end + 2) : IN_DOLLARS.exec(text.slice(i, i + 404))?.[0];
      if (!whole || (close && (end <= i + 2 || whole.length > MAX_TARGET))) return false;
      const tex = close ? whole.slice(2, -2) : whole.slice(1, -1);
      if (!close && !isFormula(tex, text[i - 1])) return false;
      take(i, whole.length);
      add({ type: "math", at: at + i, text: whole, tex, display: close !== undefined && begin !== "\\(" });
      return true;
    }

    /** Where `mark` is next; asked for places that rise, the text is gone through once. */
    function next(mark, from) {
      const known = marks.get(mark);
      if (known === undefined || (known >= 0 && known < from)) marks.set(mark, text.indexOf(mark, from));
      return marks.get(mark);
    }
  }

  function emphasis(text, at, i, take, char) {
    const double = text[i + 1] === char;
    if (char === "~" && !double) return;
    const before = text[i - 1] ?? " ";
    for (const mark of double ? [char + char, char] : [char]) {
      if (!(mark in KINDS)) continue;
      const after = text[i + mark.length] ?? " ";
      const opened = open.findLastIndex((each) => each.mark === mark);
      const inWord = char === "_" && /[\p{L}\p{N}]/u.test(before) && /[\p{L}\p{N}]/u.test(after);
      if (opened >= 0 && /\S/.test(before) && !inWord) {
        take(i, mark.length);
        while (open.length > opened + 1) giveUp();
        const { spans: inside } = open.pop();
        add({ type: KINDS[mark], spans: inside });
        return;
      }
      if (/\S/.test(after) && !inWord && open.length < MAX_OPEN && (mark.length === 2 || after !== char)) {
        take(i, mark.length);
        open.push({ mark, at: at + i, spans: [] });
        return;
      }
    }
    SPECIAL.lastIndex = i + (double ? 2 : 1);
  }
}

/** Whether what stands between two dollars is a formula, and no amount of money. */
function isFormula(tex, before) {
  if (/^\s|\s$/.test(tex) || /[\p{L}\p{N}]/u.test(before ?? "")) return false;
  return !/\s/.test(tex) || /[\\^_=+<>{}]/.test(tex);
}

function characterOf([, decimal, hexadecimal, name]) {
  if (name) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : undefined;
  const code = decimal ? Number(decimal) : parseInt(hexadecimal, 16);
  return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : undefined;
}

/** The address if it is one to open, else null: only the web, and mail. */
function safeLink(text) {
  if (!/^(https?:\/\/|mailto:)/i.test(text)) return null;
  try {
    return new URL(text).href;
  } catch {
    return null;
  }
}

/** Of each run of backticks, also of one without its first: its length, and where the run is that closes it. */
function ticksOf(text) {
  const next = [];
  const ticks = new Map();
  for (const { 0: run, index } of [...text.matchAll(/`+/g)].reverse()) {
    for (const left of [run.length, run.length - 1]) {
      ticks.set(index + run.length - left, { length: left, end: next[left] });
    }
    next[run.length] = index;
  }
  return ticks;
}
