/* The check of a run folder, from docs/verifier.md and the manifest's JSON Schema. It uses no document and no network. */

/** Why a run is not accepted. kind: "edited", "newer" than this page, "unconfirmed" by its bounds, "unproven" by any, "foreign" for a file that is
    no part of it, or "unreadable". */
class Refusal extends Error {
  constructor(kind, words) {
    super(words);
    this.kind = kind;
  }
}
const refuse = (words, kind = "edited") => { throw new Refusal(kind, words); };
const must = (condition, words, kind) => condition || refuse(words, kind);

/* JSON. A number keeps its text, as the digest of the manifest is of the text, and 1.0 is no whole number. */

class Figure {
  constructor(text) {
    this.text = text;
    this.whole = !/[.eE]/.test(text);
    this.value = Number(text);
  }
}
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const MOST_LEVELS = 200;

/** The value of a JSON text: null, booleans, strings, Figures, arrays and Maps. Nothing is read in two ways: a key that
    occurs twice, NaN, a number beyond float64, half a character and text after the value are refused. */
function decoded(text, where, kind) {
  let place = 0;
  const wrong = (what) => refuse(`${where} cannot be read: ${what}, at character ${place + 1}.`, kind);
  const blank = () => { while (place < text.length && " \t\n\r".includes(text[place])) place++; };
  const match = (pattern) => {
    pattern.lastIndex = place;
    const found = pattern.exec(text);
    if (found) place += found[0].length;
    return found && found[0];
  };
  const string = () => {
    const found = match(STRING);
    if (found === null) wrong("text is expected");
    const value = JSON.parse(found);
    return /\p{Surrogate}/u.test(value) ? wrong("half a character") : value;
  };
  const items = (close, item) => {
    place++;
    blank();
    if (text[place] === close) { place++; return; }
    for (;;) {
      item();
      blank();
      const next = text[place++];
      if (next === close) return;
      if (next !== ",") { place--; wrong(`a comma or ${close} is expected`); }
      blank();
    }
  };
  const value = (level) => {
    if (level > MOST_LEVELS) wrong("too many values inside each other");
    blank();
    const first = text[place];
    if (first === "{") {
      const found = new Map();
      items("}", () => {
        const key = string();
        if (found.has(key)) wrong(`the key ${shown(key)} occurs twice`);
        blank();
        if (text[place++] !== ":") { place--; wrong("a colon is expected"); }
        found.set(key, value(level + 1));
      });
      return found;
    }
    if (first === "[") {
      const found = [];
      items("]", () => found.push(value(level + 1)));
      return found;
    }
    if (first === '"') return string();
    for (const [word, meaning] of [["true", true], ["false", false], ["null", null]]) {
      if (text.startsWith(word, place)) { place += word.length; return meaning; }
    }
    const number = match(NUMBER);
    if (number === null) wrong("a value is expected");
    const figure = new Figure(number);
    return Number.isFinite(figure.value) ? figure : wrong(`${number.slice(0, 40)} is too large`);
  };
  try {
    const found = value(0);
    blank();
    return place === text.length ? found : wrong("something follows the value");
  } catch (error) {
    if (error instanceof RangeError) wrong("it is too long");
    throw error;
  }
}
/** A value for a sentence: short, and without characters that move others. */
const shown = (value) => {
  const text = String(value).replace(/\p{C}/gu, "·");
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
};

/** The text that the digest of the manifest is of: keys sorted by code point, ", " and ": " between values. */
function encoded(value, { sorted = false, ascii = false } = {}) {
  const text = (one) => {
    if (one instanceof Figure) return one.whole ? String(BigInt(one.text)) : floatText(one.value);
    if (typeof one === "string" && ascii) {
      return JSON.stringify(one).replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
    }
    if (Array.isArray(one)) return `[${one.map(text).join(", ")}]`;
    if (!(one instanceof Map)) return JSON.stringify(one);
    const keys = [...one.keys()];
    if (sorted) keys.sort(byCodePoint);
    return `{${keys.map((key) => `${text(key)}: ${text(one.get(key))}`).join(", ")}}`;
  };
  return text(value);
}
function byCodePoint(a, b) {
  const [left, right] = [[...a], [...b]];
  for (let n = 0; n < Math.min(left.length, right.length); n++) {
    const differ = left[n].codePointAt(0) - right[n].codePointAt(0);
    if (differ) return differ;
  }
  return left.length - right.length;
}

/** Shortest decimal digits and exponent of a float64: value = 0.d1d2d3... 10^exponent. */
function decimal(value) {
  const [mantissa, exponent] = Math.abs(value).toExponential().split("e");
  return [mantissa.replace(".", ""), Number(exponent) + 1];
}
function positional(digits, point) {
  if (point <= 0) return `0.${"0".repeat(-point)}${digits}`;
  if (digits.length <= point) return digits + "0".repeat(point - digits.length);
  return `${digits.slice(0, point)}.${digits.slice(point)}`;
}
function scientific(digits, point) {
  const exponent = String(Math.abs(point - 1)).padStart(2, "0");
  return `${digits[0]}${digits.length > 1 ? `.${digits.slice(1)}` : ""}e${point > 0 ? "+" : "-"}${exponent}`;
}
/** A float64 as linprobe writes it in JSON and CSV: 1.0, 1e-05, 1e+16. */
function floatText(value) {
  const [digits, point] = decimal(value), sign = value < 0 || Object.is(value, -0) ? "-" : "";
  if (point < -3 || point > 16) return sign + scientific(digits, point);
  const text = positional(digits, point);
  return sign + text + (text.includes(".") ? "" : ".0");
}
/** The least number of so many significant digits that is at least `value`, of 0 or more: figures of the guarantee. */
function roundedUp(value, size = 6) {
  if (value === null || value === undefined) return "-";
  if (!Number.isFinite(value)) return "infinite";
  let [digits, point] = decimal(value);
  if (digits.length > size) {
    digits = String(BigInt(digits.slice(0, size)) + 1n);
    if (digits.length > size) point++;
  }
  digits = digits.replace(/0+$/, "") || "0";
  return point < -3 || point > size ? scientific(digits, point) : positional(digits, point);
}

/* The schema. Only the keywords that the manifest's schema uses are known. */

const KEYWORDS = new Set(
  "$schema title description type const enum minimum maximum exclusiveMinimum maxLength pattern minItems maxItems uniqueItems items properties required additionalProperties maxProperties".split(" "));
function typeOf(value) {
  if (value === null) return "null";
  if (value instanceof Figure) return value.whole ? "integer" : "number";
  if (value instanceof Map) return "object";
  return Array.isArray(value) ? "array" : typeof value;
}

/** The path of the first value that a schema does not allow, or null. */
function misfit(schema, value, path = "") {
  for (const word of Object.keys(schema)) if (!KEYWORDS.has(word)) throw new Error(`schema keyword ${word}`);
  const type = typeOf(value), types = schema.type === undefined ? null : [].concat(schema.type);
  if (types && !types.includes(type) && !(type === "integer" && types.includes("number"))) return path;
  if ("const" in schema && !(type === "integer" && value.value === schema.const)) return path;
  if (type === "string") {
    const length = [...value].length, { pattern, maxLength = Infinity } = schema;
    const known = schema.enum ? schema.enum.includes(value) : true;
    return known && length <= maxLength && (!pattern || new RegExp(pattern, "u").test(value)) ? null : path;
  }
  if (value instanceof Figure) {
    const { minimum = -Infinity, maximum = Infinity, exclusiveMinimum = -Infinity } = schema;
    const size = value.whole && maximum === 2 ** 63 ? BigInt(value.text) : 0n; // float64 rounds the limit, 2^63 - 1
    if (size >= 2n ** 63n || size <= -(2n ** 63n)) return path;
    return value.value >= minimum && value.value <= maximum && value.value > exclusiveMinimum ? null : path;
  }
  if (type === "array") {
    const { minItems = 0, maxItems = Infinity, items = {} } = schema;
    if (value.length < minItems || value.length > maxItems) return path;
    if (schema.uniqueItems && new Set(value).size < value.length) return path;
    return firstFound(value.entries(), (n, one) => misfit(items, one, `${path}[${n}]`));
  }
  if (type !== "object") return null;
  const { properties = {}, additionalProperties: others = {}, maxProperties = Infinity, required = [] } = schema;
  if (value.size > maxProperties) return path;
  const dot = path ? `${path}.` : "";
  const lacking = required.find((key) => !value.has(key));
  if (lacking !== undefined) return dot + lacking;
  return firstFound(value.entries(), (key, one) => {
    if (Object.hasOwn(properties, key)) return misfit(properties[key], one, dot + key);
    return others === false ? dot + key : misfit(others, one, dot + key);
  });
}
function firstFound(entries, look) {
  for (const [key, value] of entries) {
    const found = look(key, value);
    if (found !== null) return found;
  }
  return null;
}
/** The value with plain numbers and objects. Whole numbers beyond 2^53 are rounded. */
function plain(value) {
  if (value instanceof Figure) return value.value;
  if (Array.isArray(value)) return value.map(plain);
  if (!(value instanceof Map)) return value;
  return Object.assign(Object.create(null), Object.fromEntries([...value].map(([key, one]) => [key, plain(one)])));
}

/* Words and rules that docs/verifier.md states. */

const RUN_FILES = ["model.npz", "ledger.jsonl", "history.csv"];
const PAGES = ["README.md", "claim.yaml"];
const LISTED = new Set([...RUN_FILES, "test_figures.json", "config.toml", "unrefined.npz", ...PAGES]);
const UNLISTED = new Set(["manifest.json", "manifest.json.sig", "per_record.npz", "verify.html", ...PAGES]);
const ADJACENCIES = {
  record: "zero-out adjacency (one private record is present, or its place is empty; the number of places is public)",
  owner: "zero-out adjacency of people (all private rows of one person are present, or none of them; the number of people is public, the number of rows of a person is not)",
};
const PROTECTED = { record: "the private rows", owner: "people, each with all of their private rows" };
const NOUNS = { record: "rows", owner: "people" };
const SCORES = {
  record: "a noisy count of right private rows",
  owner: "a noisy sum over people of the share of their rows that are right",
};
const SECRET = "operating system, ChaCha20", SEEDED = "user seed, not private", UNDRAWN = "none drawn";
const GDP = "Gaussian DP (ball arithmetic)";
const PLD = "privacy-loss distribution (dp-accounting)", BOUNDED_PLD = "privacy-loss distribution (proven bounds)";
const RDP = "Renyi DP (dp-accounting)", REPEATED = "Renyi DP of repeated selection (dp-accounting)";
const CROSS_CHECKS = new Map([[GDP, [BOUNDED_PLD, PLD]], [BOUNDED_PLD, [RDP]], [RDP, [BOUNDED_PLD]]]); // PLD: of version 0.2
const SAMPLED_EARLIER = "A run on samples by version 0.2 may state too small an epsilon. linprobe account computes a proven one of training steps alone.";
const SELECTED_BY = "privacy profile of private selection, single runs by ";
const FACTS = new Set(
  "clip_norm learning_rate captured_energy public_loss ridge scale_spread origin_norm alpha".split(" "));
/** Allowed numbers of the releases that a method makes before its steps, by purpose. own: options of the run. */
function numbersOf(m, method, own) {
  const some = m.n_public > 0, condition = METHODS[method].conditioned ? own.condition ?? "auto" : "none";
  const mean = condition === "mean" ? [1] : condition === "auto" && !some ? [0, 1] : [0];
  if (method === "dp-ls" || method === "dp-fc") return { mean, covariance: [1] };
  if (method !== "dpsgd-f") return { mean };
  if (own.variant === "theory") return { mean: [1], median: [10], radius: [10], quantile: [10] };
  const centre = own.centre ?? "auto", free = centre === "auto" && some && !known(own.feature_epsilon_share);
  return { mean: [centre === "public" || free ? 0 : 1] };
}
/** The keys that this page has a rule for; the others that it knows are STATED_KEYS. */
const CHECKED_KEYS = (
  "format guarantee private mechanism epsilon epsilon_if_seed_were_secret delta gdp_mu zcdp_rho noise_multiplier sampling_rate " +
  "steps releases accountant cross_check paper adjacency noise_source seed_kind n_features n_classes test_accuracy_std " +
  "test_balanced_accuracy test_balanced_accuracy_std test_macro_auroc_std selection per_record_commitment files manifest_digest").split(" ");
const STATED_KEYS = (
  "epsilon_target accountant_versions method public unit n_units n_private n_public software precision device created " +
  "class_names class_names_from task ids_from options preset centre features backbone extraction public_from public_shots n_public_owners " +
  "public_file split_seed per_owner_rows class_weights public_digest class_counts class_prior test_owners largest_n_private refined test_rows test_accuracy " +
  "test_macro_auroc test_calibration_error test_accuracy_per_class n_test test_macro_average_precision test_label_accuracy " +
  "test_counts test_scores tuning published run_id private_commitment").split(" ");
const KNOWN_KEYS = new Set([...CHECKED_KEYS, ...STATED_KEYS]);
const PURPOSES = {
  gradient: "training steps", mean: "the mean of the private rows", covariance: "the covariance of the features",
  "test accuracy": "the accuracy on private test rows", "test AUROC": "the AUROC on private test rows", "class counts": "the number of private rows of each class",
  "similar rows": "the number of private rows near rows without labels", "refinement gain": "how many more private rows are right after refinement",
  selection: "the choice of a setting", histogram: "a published histogram of privacy losses",
  inherited: "the earlier run that this one started from", median: "clip norms", radius: "clip norms", quantile: "clip norms",
};
const SAME_KIND = 0.5; // of linprobe/methods/similar_rows.py
const USUAL_GAIN = 0.02, VARIANCE = 0.001; // of linprobe/mechanisms/correct_predictions.py
const OF_LABELS = ["test_label_accuracy", "test_macro_average_precision"];
const OF_CLASSES = ["test_accuracy", "test_balanced_accuracy", "test_calibration_error", "test_accuracy_per_class"];
const ACCURACIES = ["test_accuracy", "test_accuracy_std", "test_balanced_accuracy", "test_balanced_accuracy_std",
  "test_macro_auroc", "test_macro_auroc_std", "test_calibration_error", "test_accuracy_per_class", "test_macro_average_precision",
  "test_label_accuracy", "test_counts", "test_scores"];

const known = (value) => value !== null && value !== undefined;
const close = (a, b) => a === b || Math.abs(a - b) <= 1e-9 * Math.max(1, Math.abs(a), Math.abs(b));
const sameJson = (a, b) => JSON.stringify(a) === JSON.stringify(b);
const sameNames = (object, names) => sameJson(Object.keys(object).sort(), [...names].sort());
const hex = (buffer) => [...new Uint8Array(buffer)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const sha256 = async (bytes) => hex(await crypto.subtle.digest("SHA-256", bytes));
const utf8 = new TextEncoder();
const LONGEST_TEXT = 2 ** 29; // bytes; a browser has no longer strings
const LONGEST_MANIFEST = 2 ** 26; // bytes
function textOf(bytes, where, kind) {
  must(bytes.length < LONGEST_TEXT, `${where} is too large for a browser. Use linprobe verify.`, "unreadable");
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return refuse(`${where} is not text in UTF-8.`, kind);
  }
}

/** The manifest: its values, and the same with the texts of numbers. */
function readManifest(bytes, schema) {
  must(bytes.length <= LONGEST_MANIFEST, "manifest.json is larger than 64 MB, and linprobe reads none of that size.");
  const typed = decoded(textOf(bytes, "manifest.json", "unreadable"), "manifest.json", "unreadable");
  must(typed instanceof Map, "manifest.json holds no object.", "unreadable");
  const format = typed.get("format");
  if (!(format instanceof Figure && format.whole && format.value === schema.properties.format.const)) {
    refuse(`manifest.json has format ${format instanceof Figure ? format.text : shown(format)}. This page reads format ${schema.properties.format.const}. Use the page that came out with the version of linprobe that wrote the run.`, "newer");
  }
  for (const key of typed.keys()) {
    must(Object.hasOwn(schema.properties, key) && KNOWN_KEYS.has(key), `manifest.json holds the key ${shown(key)}, which this page does not know.`, "newer");
  }
  const path = misfit(schema, typed);
  if (path !== null) refuse(`manifest.json lacks ${shown(path)}, or holds a value there that the format does not allow.`);
  const manifest = plain(typed);
  checkTogether(manifest, typed);
  return [manifest, typed];
}

/** Values that are right by themselves and cannot stand together. */
function checkTogether(m, typed) {
  if (known(m.accountant)) {
    const needed = ["delta", "epsilon_target", "noise_multiplier", "sampling_rate", "steps", "releases", "cross_check",
      m.private ? "epsilon" : "epsilon_if_seed_were_secret"];
    const empty = needed.find((key) => !known(m[key]));
    must(empty === undefined, `${empty} is empty, although noise was added.`);
  }
  const histograms = m.published.map((one) => one.file);
  for (const name of Object.keys(m.files)) {
    must(LISTED.has(name) || histograms.includes(name), `The manifest lists ${shown(name)}, which is no public file of a run.`);
  }
  for (const name of RUN_FILES) must(known(m.files[name]), `The manifest has no digest of ${name}.`);
  must(m.class_names.length === m.n_classes, "n_classes is not the number of class_names.");
  must("refined" in m === known(m.files["unrefined.npz"]), "refined and unrefined.npz need each other.");
  const weights = typed.get("class_weights"), counts = typed.get("class_counts");
  must(!known(counts) || sameJson([...counts.get("by_class").keys()], m.class_names), "class_counts names other classes.");
  must(!known(weights) || sameJson([...weights.keys()], m.class_names), "class_weights names other classes.");
  must(!(m.private && !known(m.epsilon)), "epsilon is empty in a private run.");
  must(!m.selection || (m.tuning && "settings" in m.tuning && "chosen" in m.tuning), "tuning does not belong to the selection.");
}

const EVENT = ["event", "purpose", "step", "sensitivity", "noise_multiplier", "sampling_rate"];
const MOST_KINDS = 200, LONGEST_LINE = 4096, MOST_RELEASES = 1e12, LARGEST = 1e300;
const positive = (one, largest) => one instanceof Figure && one.value > 0 && one.value <= largest;

/** The events of a ledger, or its selection. Each line must be, byte by byte, as linprobe writes it. */
function readLedger(bytes) {
  const lines = textOf(bytes, "ledger.jsonl").split("\n"), events = [];
  must(lines.pop() === "", "The last line of ledger.jsonl is not complete.");
  for (const [number, line] of lines.entries()) {
    const where = `Line ${number + 1} of ledger.jsonl`;
    const typed = decoded(line, where);
    must(typed instanceof Map && encoded(typed, { ascii: true }) === line, `${where} is not as linprobe writes it.`);
    if (typed.get("event") === "selection") {
      must(lines.length === 1, "The ledger of a selection has further lines.");
      return { events, selection: readSelection(typed) };
    }
    must(typed.get("event") === "gaussian", `${where} is the event ${shown(typed.get("event"))}, which this page does not know.`, "newer");
    const [, purpose, step, sensitivity, noise, rate] = EVENT.map((key) => typed.get(key));
    const whole = step instanceof Figure && step.whole && step.value === number;
    const right = typeof purpose === "string" && whole && positive(sensitivity, LARGEST) && positive(noise, LARGEST) && positive(rate, 1);
    must(line.length <= LONGEST_LINE && sameJson([...typed.keys()], EVENT) && right, `${where} is not as linprobe writes it: its keys, its step number, or its noise are wrong.`);
    events.push({ purpose, sensitivity: sensitivity.value, noise_multiplier: noise.value, sampling_rate: rate.value });
  }
  return { events, selection: null };
}

function readSelection(typed) {
  const fields = plain(typed), runs = fields.runs, mean = typed.get("mean_repetitions");
  const keys = ["event", "distribution", "mean_repetitions", "runs"];
  must(sameJson([...typed.keys()], keys) && fields.distribution === "geometric", "The ledger holds a selection of an unknown kind.", "newer");
  const right = mean instanceof Figure && mean.whole && mean.value >= 2 && mean.value <= 1000 && Array.isArray(runs) && runs.length &&
    typed.get("runs").every((run) => Array.isArray(run) && run.length && run.every((one) => one instanceof Map &&
      sameJson([...one.keys()], ["purpose", "noise_multiplier", "sampling_rate", "count"]) && typeof one.get("purpose") === "string" &&
      positive(one.get("noise_multiplier"), LARGEST) && positive(one.get("sampling_rate"), 1) &&
      positive(one.get("count"), MOST_RELEASES) && one.get("count").whole));
  must(right, "The selection in ledger.jsonl has noise, rates or numbers outside their ranges.");
  return fields;
}

/** Equal releases counted together, in the order of their first line. */
function grouped(events) {
  const found = new Map();
  for (const { purpose, noise_multiplier, sampling_rate } of events) {
    const key = JSON.stringify([purpose, noise_multiplier, sampling_rate]);
    if (!found.has(key)) found.set(key, { purpose, noise_multiplier, sampling_rate, count: 0 });
    found.get(key).count++;
  }
  return [...found.values()];
}

/** The public facts of each step. */
function readHistory(bytes, steps) {
  const text = textOf(bytes, "history.csv"), rows = [];
  must(text === "" || text.endsWith("\n"), "The last line of history.csv is not complete.");
  const [header, ...body] = text.split("\n").slice(0, -1).map((line) => line.split(","));
  must((body.length === (steps ?? 0)) && (steps || text === ""), `history.csv has ${body.length} lines for ${steps ?? 0} steps.`);
  if (!body.length) return rows;
  must(header[0] === "step" && new Set(header).size === header.length, "history.csv has other columns than linprobe writes.");
  const strange = header.slice(1).find((name) => !FACTS.has(name));
  must(strange === undefined, `history.csv has the column ${shown(strange)}, which this page does not know.`, "newer");
  for (const [number, line] of body.entries()) {
    const cells = line.map(Number);
    const right = line.length === header.length && cells.every((cell, n) => Number.isFinite(cell) && floatText(cell) === line[n]);
    must(right && cells[0] === number + 1, `Line ${number + 2} of history.csv is not as linprobe writes it.`);
    rows.push(Object.fromEntries(header.map((name, n) => [name, cells[n]])));
  }
  return rows;
}

/** How far one record moves the counts by class: one count, or those of all its labels. */
const sensitivityOfCounts = (m) => (m.task === "multilabel" ? above(Math.sqrt(m.n_classes)) : 1);

/** The release that a sum was used for decides how far one record can move it. */
function checkSensitivities(m, events, history) {
  const theory = m.method === "dpsgd-f" && m.options.variant === "theory";
  const factors = m.tuning?.factors?.length ?? 0, clips = history[Symbol.iterator]();
  const rootAbove = (value) => above(Math.sqrt(value));
  const widths = [1, m.n_features, m.n_features + 1].map(rootAbove);
  const allowed = new Map([
    ["mean", theory ? null : [1]], ["class counts", [sensitivityOfCounts(m)]], ["similar rows", [1]], ["refinement gain", [1]], ["covariance", [1]], ["histogram", [1]], ["inherited", [1]],
    ["test accuracy", [rootAbove(2), Math.SQRT2]], ["test AUROC", [rootAbove(histogramsOf(m))]], ["selection", factors ? [above(Math.sqrt(factors) / 2)] : []],
    ["gradient", []], ["median", widths], ["radius", widths], ["quantile", widths],
  ]);
  for (const [number, event] of events.entries()) {
    const where = `Line ${number + 1} of ledger.jsonl`;
    must(allowed.has(event.purpose), `${where} is a release for ${shown(event.purpose)}, which this page does not know.`, "newer");
    const ofTheory = ["median", "radius", "quantile"].includes(event.purpose);
    must(!ofTheory || theory, `${where} is a release for ${event.purpose}, which this method never makes.`);
    const right = event.purpose === "gradient" ? [clips.next().value?.clip_norm ?? 1] : allowed.get(event.purpose);
    must(right === null || right.includes(event.sensitivity), `${where} has sensitivity ${event.sensitivity}, which is not that of its purpose.`);
  }
  const clip = m.options.clip_norm;
  must(theory || !known(clip) || history.every((row) => (row.clip_norm ?? clip) === clip), "history.csv has another clip_norm than the options.");
}

const releasesOf = (m) => (m.selection ? m.selection.runs.flat() : m.releases ?? []);
/** The run that the options start from, and null if they name none. */
function startOf({ options: { init } }) {
  return typeof init === "string" && !["auto", "zero", "public", "text"].includes(init) ? init : null;
}
/** The name of the run that this one started from, if the ledger counts no release of it; else null. */
function uncounted(m) {
  const start = startOf(m);
  return start === null || releasesOf(m).some((one) => one.purpose === "inherited") ? null : start.split(/[/\\]/).filter(Boolean).pop() ?? start;
}

/** Whether a result was known before a release, and some releases are of samples: epsilon then holds on a condition. */
function followsResults(m) {
  const made = releasesOf(m);
  return made.some((one) => ["inherited", "histogram"].includes(one.purpose)) && made.some((one) => one.sampling_rate < 1);
}

/** Keys that need a release, and releases that need a key. */
function checkPurposes(m, releases) {
  const made = new Set(releases.map((one) => one.purpose)), tuning = m.tuning;
  for (const purpose of made) {
    must(Object.hasOwn(PURPOSES, purpose), `The run made a release for ${shown(purpose)}, which this page does not know.`, "newer");
  }
  must(["none", "public", "private", "unlabelled"].includes(m.centre), `centre is ${shown(m.centre)}.`);
  must(m.centre !== "private" || made.has("mean"), "centre is private, and no mean was released.");
  must(!made.has("inherited") || startOf(m) !== null, "The ledger counts an earlier run, and init names none.");
  const counts = m.class_counts, counting = releases.filter((one) => one.purpose === "class counts");
  must(known(counts) === counting.length > 0, "class_counts and a release for class counts need each other.");
  must(!known(counts) || counting.every((one) => one.noise_multiplier * sensitivityOfCounts(m) === counts.std), "class_counts has another noise than its release.");
  const possible = (one, std, least = 0) => least - 40 * std <= one && one <= m.n_private + 40 * std;
  must(!known(counts) || Object.values(counts.by_class).every((one) => possible(one, counts.std)), "class_counts has a number that noise cannot make.");
  must(known(counts) || m.class_prior !== "uniform", "class_prior is uniform, without class counts.");
  const { similar, gain } = m.refined ?? {}, byTraining = known(m.refined) && !known(m.refined.run) && known(m.accountant);
  for (const [name, purpose, found, least] of [["similar", "similar rows", similar, 0], ["gain", "refinement gain", gain, -m.n_private]]) {
    must(known(found) === made.has(purpose) && known(found) === byTraining, `refined.${name}, a release for ${purpose} and a refinement by training need each other.`);
    must(!known(found) || releases.every((one) => one.purpose !== purpose || one.noise_multiplier === found.std), `refined.${name} has another noise than its release.`);
    must(!known(found) || possible(found.count, found.std, least), `refined.${name} has a number that noise cannot make.`);
  }
  must(m.centre !== "unlabelled" || (known(similar) && (similar.count - similar.std) / m.n_private >= SAME_KIND), "centre is unlabelled, and too few rows are similar to them.");
  must(m.centre !== "unlabelled" || !made.has("mean"), "centre is unlabelled, and a mean was released.");
  const shots = m.refined?.near_shots;
  must(!known(shots) || (shots.near <= shots.of && shots.of <= m.n_public && (m.public_shots > 0 || !known(m.accountant)) && !known(similar)), "refined.near_shots is not possible in this run.");
  must(!known(gain) || Math.abs(gain.expected) <= USUAL_GAIN, "refined.gain.expected is out of range.");
  must(!known(gain) || gain.count >= -gain.expected * gain.std * gain.std / (VARIANCE * m.n_private) || m.refined.strength === 0, "refined.strength is not 0, and refined.gain says that refinement harms.");
  must(known(tuning) === made.has("selection"), "tuning and a release for a selection need each other.");
  must(made.has("test AUROC") === known(m.test_scores), "test_scores and a release for an AUROC on test rows need each other.");
  must(!known(m.test_scores) || known(m.test_counts), "test_scores has no test_counts.");
  must(!made.has("test accuracy") || m.test_rows === "private", "Noisy counts on private test rows were released, and test_rows is not private.");
  checkMethod(m, releases);
  if (!known(tuning)) return;
  const factors = tuning.factors ?? [];
  must(m.selection || (factors.length > 1 && !("settings" in tuning)), "tuning is of a grid, and the ledger has no selection.");
  const std = above(Math.sqrt(factors.length) / 2);
  const agrees = factors.length && releases.every((one) => one.purpose !== "selection" || one.noise_multiplier * std === tuning.std);
  must(agrees && tuning.counts?.length === factors.length && tuning.shrink === factors[tuning.counts.indexOf(Math.max(...tuning.counts))], "tuning does not follow from the release for the selection.");
}

/** Releases that the method makes, and public rows. */
function checkMethod(m, releases) {
  if (m.selection) checkRuns(m);
  else if (known(m.accountant)) {
    const words = notMade(releases, m.method, numbersOf(m, m.method, offerOf(m, {}).own));
    must(!words, `The ledger has ${words}.`);
  }
  const some = m.n_public > 0;
  must(METHODS[m.method].joins || some === (m.public_from !== "nowhere"), "public_from contradicts n_public.");
  must(METHODS[m.method].joins || some === known(m.public_digest), "public_digest contradicts n_public.");
  must(some || !METHODS[m.method].publicRows, "The method needs public rows, and n_public is 0.");
}

/** What the method makes in another number or of all rows, in words; null if nothing. */
function notMade(releases, method, numbers) {
  for (const [purpose, allowed] of Object.entries(numbers)) {
    const made = releases.filter((one) => one.purpose === purpose).reduce((sum, one) => sum + one.count, 0);
    if (!allowed.includes(made)) return `${made} releases for ${shown(purpose)}, and the method ${method} makes ${allowed.join(" or ")}`;
  }
  const one = releases.find(({ purpose, sampling_rate }) => sampling_rate !== 1 && purpose !== "inherited" &&
    !(purpose === "gradient" && METHODS[method].sampled));
  return one ? `a release for ${shown(one.purpose)} with a sampling rate below 1, and the method ${method} makes it of all rows` : null;
}

/** Each run of a selection has a setting of the grid. Each setting, and what the manifest states, has a run. */
function checkRuns(m) {
  const { settings, chosen } = m.tuning, { runs } = m.selection;
  must(Number.isInteger(chosen) && settings[chosen], "tuning chose a setting that it did not offer.");
  const offers = settings.map((setting) => offerOf(m, setting)), own = { ...m.options, method: m.method };
  for (const [name, value] of Object.entries(offers[chosen].given)) {
    const same = sameJson(own[name], value) || (!known(value) && DEFAULTED.includes(name));
    must(same, `tuning chose another ${shown(name)} than the run has.`);
  }
  const unlike = runs.map((run) => offers.map((offer) => unlikeOf(m, run, offer)));
  for (const words of unlike) must(words.includes(null), `A run of the selection has ${words[chosen]}.`);
  for (const place of settings.keys()) must(unlike.some((words) => words[place] === null), `The selection has no run with setting ${place} of tuning.`);
  const step = { purpose: "gradient", noise_multiplier: m.noise_multiplier, sampling_rate: m.sampling_rate, count: m.steps };
  const found = runs.filter((run, n) => unlike[n][chosen] === null && run.some((one) => sameRelease([one], [step])));
  must(found.length, "The manifest states steps that no run with the chosen setting has.");
  must(m.centre !== "private" || found.some((run) => run.some((one) => one.purpose === "mean")), "centre is private, and no run with the chosen setting has a mean.");
}

/** A setting of a grid: its method, what it gives, by names of options, and all options of its run. */
const DEFAULTED = ["sampling_rate", "centre", "condition"]; // where null
function offerOf(m, setting) {
  const method = setting.method ?? m.method, given = { method };
  must(typeof method === "string" && Object.hasOwn(METHODS, method) && METHODS[method].noise, `The method ${shown(method)} is not known to make releases, and the ledger has some.`);
  const { arguments: taken } = METHODS[method];
  for (const [name, value] of Object.entries(setting)) {
    must(name === "method" || Object.hasOwn(taken, name), `tuning has the option ${shown(name)}, which the method ${method} lacks.`);
    given[name === "method" ? name : taken[name][0]] = value;
  }
  const own = { ...m.options, ...given };
  for (const [name, type] of Object.values(taken)) {
    must(!known(own[name]) || type === null || typeof own[name] === type, `The option ${name} is ${shown(own[name])}, which is no ${type}.`);
  }
  return { method, given, own };
}

/** What a run of a selection has and a run with a setting has not, in words; null if nothing. */
function unlikeOf(m, run, { method, own }) {
  const before = { ...numbersOf(m, method, own), selection: [1], "class counts": [known(m.class_counts) ? 1 : 0] };
  const others = run.filter(({ purpose }) => purpose !== "gradient" && !Object.hasOwn(before, purpose));
  const words = notMade(run, method, { ...before, ...Object.fromEntries(others.map(({ purpose }) => [purpose, [0]])) });
  if (words) return words;
  const steps = run.filter(({ purpose }) => purpose === "gradient");
  if (steps.length !== 1) return `${steps.length} kinds of training steps, and the method ${method} makes 1`;
  const stated = [["count", own.n_steps], ["noise_multiplier", own.noise_multiplier], ["sampling_rate", METHODS[method].sampled ? own.sampling_rate : 1]];
  const [fact, value] = stated.find(([fact, value]) => known(value) && steps[0][fact] !== value) ?? [];
  return fact ? `training steps with ${fact} ${steps[0][fact]}, and its setting has ${shown(value)}` : null;
}

/** The claim of a run that released something with noise, against its ledger. What it costs, and how that is known. */
function recomputed(m, events, selection) {
  const stated = m.private ? m.epsilon : m.epsilon_if_seed_were_secret, { delta, unit } = m;
  must(m.n_private > 0 && delta > 0 && delta < 1 && delta * Math.max(m.n_private, m.largest_n_private ?? 0) < 1, "delta is not below 1 divided by the number of private records or people.");
  const seed = known(m.options.insecure_seed);
  const secret = m.private && m.seed_kind === "os" && m.noise_source === SECRET && !seed;
  const seeded = !m.private && m.seed_kind === "insecure" && m.noise_source === SEEDED && seed;
  must(secret || seeded, "What the manifest says about the noise and its seed contradicts itself.");
  const claim = (kind) => `(${roundedUp(stated)}, ${roundedUp(delta)})-differential privacy of ${PROTECTED[unit]} (${kind}) under ${ADJACENCIES[unit]}`;
  const found = selection ? ofSelection(m, selection) : ofReleases(m, events);
  const guarantee = m.private ? claim(found.kind) : "not private: the noise came from a seed the user gave";
  must(m.guarantee === guarantee, "The sentence of the guarantee does not follow from the ledger.");
  must(stated <= m.epsilon_target, "epsilon is above epsilon_target.");
  const moving = unit === "owner" && (m.device !== "cpu" || !("arithmetic" in m.software));
  must(!moving || !m.published.length, "The published histogram is of losses of people by version 0.2 or a GPU. Its noise is not proven to hide a person. The other releases are as stated.", "unproven");
  return { ...found, stated };
}

function ofReleases(m, events) {
  const releases = grouped(events), stated = m.private ? m.epsilon : m.epsilon_if_seed_were_secret;
  const steps = releases.filter((one) => one.purpose === "gradient");
  const claimed = [{ purpose: "gradient", noise_multiplier: m.noise_multiplier, sampling_rate: m.sampling_rate, count: m.steps }];
  must(sameRelease(steps, claimed), "The training steps in the ledger are not those of the manifest: their number, noise or sampling rate differs.");
  const paid = events.filter((one) => one.purpose === "histogram").map((one) => one.noise_multiplier).sort();
  must(sameJson(paid, m.published.map((one) => one.noise_multiplier).sort()), "The published histograms are not those that the ledger paid for.");
  const named = m.published.map((one) => one.file).filter(known);
  must(new Set(named).size === named.length, "Two published histograms name one file.");
  for (const file of named) must(known(m.files[file]), `The manifest has no digest of ${file}.`);
  for (const one of m.published) {
    const { mu } = gaussianFigures([{ noise_multiplier: one.noise_multiplier, count: 1 }]);
    must(holds(one.epsilon * (1 + 2e-9), m.delta, mu), "A published histogram costs more epsilon than the manifest says.");
  }
  must(sameRelease(m.releases, releases), "The manifest's list of releases is not the ledger's.");
  must(m.accountant !== PLD, SAMPLED_EARLIER, "unproven");
  must(CROSS_CHECKS.has(m.accountant), `The accountant ${shown(m.accountant)} is not known to this page.`, "newer");
  must(releases.length <= MOST_KINDS, "The ledger has too many kinds of releases for a browser. Use linprobe verify.", "unreadable");
  const cost = costOf(releases);
  must(cost.proven || m.accountant !== GDP, "The accountant does not cover sums over samples.");
  const sampled = m.sampling_rate < 1, earlier = sampled && m.accountant === RDP && m.cross_check === PLD;
  must(earlier || CROSS_CHECKS.get(m.accountant).includes(m.cross_check), "cross_check is not the second accountant of the first.");
  const mechanism = `Gaussian noise on clipped sums over ${sampled ? "Poisson samples of" : "all"} private ${NOUNS[m.unit]}, composed`;
  const first = releases.some((one) => one.purpose === "inherited") ? " with the releases of the run that it started from" : "";
  must([mechanism, mechanism + first].includes(m.mechanism), "mechanism does not follow from the releases."); // the first: of version 0.2
  if (!cost.proven) {
    must(!known(m.gdp_mu) && !known(m.zcdp_rho), "gdp_mu and zcdp_rho are stated, and sums over samples have none.");
    const epsilon = cost.epsilon(m.delta);
    const least = leastEpsilon(releases, m.delta);
    must(stated >= least, `The ledger costs epsilon of at least ${roundedUp(least)}; the manifest says ${roundedUp(stated)}.`);
    must(epsilon <= 2 * stated + 3, tooCoarse(epsilon, stated), "unconfirmed");
    must(stated <= 1.002 * epsilon + 5e-4 || m.accountant !== BOUNDED_PLD, `The manifest says epsilon ${roundedUp(stated)}, more than this page's bound, ${roundedUp(epsilon)}.`);
    return { ...cost, releases, epsilon, least, sampled: true, kind: "no GDP mu or zCDP rho: Poisson samples or private selection" };
  }
  const figures = gaussianFigures(releases), { mu, rho } = figures;
  must(m.gdp_mu === mu && m.zcdp_rho === rho, `gdp_mu or zcdp_rho is not what the ledger costs: ${mu} and ${rho}.`);
  const proved = holds(stated, m.delta, mu); // by whatever accountant: the figures of the others are not below the exact one
  const epsilon = gaussianEpsilon(m.gdp_mu, m.delta);
  must(proved, `The ledger costs epsilon ${roundedUp(epsilon, 9)}; the manifest says ${roundedUp(stated, 9)}.`);
  must(stated <= 1.002 * epsilon + 5e-4 || m.accountant !== GDP, `The ledger costs epsilon ${roundedUp(epsilon)}; the manifest says ${roundedUp(stated)}, more than rounding explains.`);
  return { ...cost, mu: m.gdp_mu, releases, epsilon, kind: `GDP mu ${roundedUp(m.gdp_mu)}, zCDP rho ${roundedUp(m.zcdp_rho)}` };
}
const tooCoarse = (epsilon, stated) =>
  `The manifest says epsilon ${roundedUp(stated)}. This page's bound, at most ${roundedUp(epsilon)}, is too far above to confirm it.`;
const sameRelease = (a, b) => a.length === b.length && a.every((one, n) => one.purpose === b[n].purpose && one.count === b[n].count &&
  one.noise_multiplier === b[n].noise_multiplier && one.sampling_rate === b[n].sampling_rate);

function ofSelection(m, selection) {
  must(m.private, "A selected run is said not to be private, which none is.");
  const step = { purpose: "gradient", noise_multiplier: m.noise_multiplier, sampling_rate: m.sampling_rate, count: m.steps };
  const has = selection.runs.some((run) => run.some((one) => sameRelease([one], [step])));
  must(has && !m.releases.length && !m.published.length, "The manifest states releases that no run of the selection has.");
  must(!known(m.gdp_mu) && !known(m.zcdp_rho), "gdp_mu and zcdp_rho are stated, and a selection has none.");
  const single = m.accountant.startsWith(SELECTED_BY) ? m.accountant.slice(SELECTED_BY.length) : "";
  must(single !== PLD, SAMPLED_EARLIER, "unproven");
  must(CROSS_CHECKS.has(single), `The accountant ${shown(m.accountant)} is not known to this page.`, "newer");
  must(m.cross_check === REPEATED, "cross_check is not that of a selection.");
  must(m.mechanism === `private selection: the best of a geometric number of runs by ${SCORES[m.unit]}; each run is Gaussian noise on clipped sums, composed`, "mechanism does not follow from the selection.");
  const found = selectionEpsilon(selection.runs, selection.mean_repetitions, m.delta);
  must(found.proven || single !== GDP, "The accountant does not cover sums over samples.");
  const least = Math.max(...selection.runs.map((run) => leastEpsilon(run, m.delta / selection.mean_repetitions)));
  must(m.epsilon >= least, `A single run costs epsilon of at least ${roundedUp(least)}; the manifest says ${roundedUp(m.epsilon)}.`);
  if (found.proven) must(found.epsilon <= m.epsilon, `The ledger costs epsilon ${roundedUp(found.epsilon, 9)}; the manifest says ${roundedUp(m.epsilon, 9)}.`);
  else must(found.epsilon <= 2 * m.epsilon + 3, tooCoarse(found.epsilon, m.epsilon), "unconfirmed");
  return { ...found, least, mu: null, releases: selection.runs[0], sampled: !found.proven, selected: true, kind: "private selection" };
}

/** A run that released nothing with noise: its claims must be those of its method. */
function withoutNoise(m, events, selection) {
  must(!events.length && !selection, "The ledger holds releases, and the manifest says that none were made.");
  const spends = METHODS[m.method]?.noise ?? true;
  must(!spends && !m.published.length, "The method adds noise, and the ledger is empty.");
  const used = m.method === "non-private", zero = used ? null : 0;
  const claims = {
    guarantee: used ? "not private: the private rows were used without protection" : "the private rows were not used: epsilon = 0, delta = 0",
    private: !used, mechanism: "none", epsilon: zero, delta: zero, gdp_mu: zero, zcdp_rho: zero, steps: zero,
    releases: used ? null : [], epsilon_target: null, noise_multiplier: null, sampling_rate: null, seed_kind: "none", noise_source: UNDRAWN,
  };
  for (const [key, value] of Object.entries(claims)) must(sameJson(m[key], value), `${key} is not what follows from a method without noise.`);
  return { epsilon: zero, stated: zero, releases: [], proven: true, mu: 0, unused: !used };
}

/** Keys that follow from other keys. */
function checkDerived(m, selection) {
  const method = Object.hasOwn(METHODS, m.method) ? METHODS[m.method] : undefined, noise = known(m.accountant);
  must(method !== undefined, `The method ${shown(m.method)} is not known to this page.`, "newer");
  must(method.papers.includes(m.paper), "paper is not that of the method.");
  const unit = m.unit ?? "record";
  must(m.adjacency === ADJACENCIES[unit] && (m.n_units ?? m.n_private) === m.n_private, "unit, adjacency and the number of units contradict each other.");
  must(!known(m.per_owner_rows) || unit === "owner", "per_owner_rows is a number, and unit is not owner.");
  const largest = m.largest_n_private;
  must(!known(largest) || (startOf(m) !== null && largest >= m.n_private), "largest_n_private contradicts n_private or init.");
  const people = known(m.n_public_owners), shots = unit === "owner" && m.public_shots > 0;
  must(!("n_public_owners" in m) || (people === shots && (m.n_public_owners ?? 0) <= m.n_public), "n_public_owners contradicts public_shots, n_public or unit.");
  for (const key of ["private_commitment", "per_record_commitment"]) {
    must(known(m[key]) === noise, `${key} contradicts what was released.`);
  }
  const labels = m.task === "multilabel";
  must(!labels || method.labels, "The method does not train on several labels.");
  for (const key of labels ? OF_CLASSES : OF_LABELS) must(!known(m[key]), `${key} is stated, and this task has none.`);
  if (noise) {
    must(!m.private || !known(m.epsilon_if_seed_were_secret), "epsilon_if_seed_were_secret is stated in a private run.");
    for (const [option, key] of [["delta", "delta"], ["n_steps", "steps"], ["noise_multiplier", "noise_multiplier"], ["sampling_rate", "sampling_rate"]]) {
      must(!known(m.options[option]) || m.options[option] === m[key], `The option ${option} is not the manifest's ${key}.`);
    }
  }
  const { refined } = m;
  must(!refined || (m.method !== "non-private" && m.options.output !== "vote" && !labels), "refined is stated, and such a run cannot be refined.");
  must(!refined || known(refined.run) === known(refined.run_digest), "refined names a run without its digest, or a digest without its run.");
  checkPurposes(m, releasesOf(m));
  must((m.test_rows === "none") === (m.n_test === 0), "test_rows and n_test contradict each other.");
  checkAccuracy(m);
  const day = Date.parse(m.created.slice(0, 10)); // browsers take 30 February for 2 March
  const real = !Number.isNaN(day) && new Date(day).toISOString().startsWith(m.created.slice(0, 10)) && !m.created.startsWith("0000");
  const time = real && /^\d{4}-\d\d-\d\d([Tt ](?!24)\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?)?$/.test(m.created) && !Number.isNaN(Date.parse(m.created.replace(/[t ]/, "T")));
  must(time, `created is ${shown(m.created)}, which is no time.`);
}

function checkAccuracy(m) {
  const byClass = m.test_accuracy_per_class, released = (m.releases ?? []).find((one) => one.purpose === "test accuracy");
  if (!known(byClass)) must(!known(m.test_balanced_accuracy), "test_balanced_accuracy is stated without accuracies by class.");
  else {
    must(Object.keys(byClass).every((name) => m.class_names.includes(name)), "test_accuracy_per_class names another class.");
    const found = Object.values(byClass).filter(known);
    const mean = found.reduce((sum, one) => sum + one, 0) / found.length;
    must(!found.length || (known(m.test_balanced_accuracy) && close(m.test_balanced_accuracy, mean)), "test_balanced_accuracy is not the mean over classes.");
  }
  if (known(m.test_counts)) return checkCounts(m, released);
  const forbidden = m.test_rows === "public" ? ["test_accuracy_std", "test_balanced_accuracy_std", "test_macro_auroc_std"] : ACCURACIES;
  for (const key of forbidden) must(!known(m[key]), `${key} is stated, and no noisy count is.`);
}

/** Accuracies on private test rows, from noisy counts (docs/metrics.md). */
function checkCounts(m, released) {
  const { right, by_class: byClass } = m.test_counts;
  const fits = released && m.test_rows === "private" && byClass.length === m.n_classes && byClass.every((pair) => pair.length === 2);
  must(fits, "test_counts belong to no release on private test rows by class.");
  const std = released.noise_multiplier * above(Math.SQRT2), within = (share) => Math.min(Math.max(share, 0), 1);
  const recalls = byClass.map(([hits, misses]) => {
    const n = hits + misses;
    return n >= 4 * std && n > 0 ? within(hits / n) : null;
  });
  const found = recalls.map((recall, n) => [recall, byClass[n][0] + byClass[n][1]]).filter(([recall]) => known(recall));
  const sum = (values) => values.reduce((total, one) => total + one, 0);
  const balanced = found.length ? sum(found.map(([recall]) => recall)) / found.length : null;
  const spread = found.length ? Math.sqrt(sum(found.map(([r, n]) => (std / n) ** 2 * ((1 - r) ** 2 + r ** 2)))) / found.length : null;
  const exact = [[m.test_accuracy, within(right / m.n_test)], [m.test_accuracy_std, std / m.n_test],
    ...(found.length ? recalls.map((recall, n) => [m.test_accuracy_per_class?.[m.class_names[n]], recall]) : [[m.test_accuracy_per_class, null]])];
  const sums = [[m.test_balanced_accuracy, balanced], [m.test_balanced_accuracy_std, spread], ...aurocOf(m, std)];
  const agree = exact.every(([stated, value]) => (stated ?? null) === value) &&
    sums.every(([stated, value]) => known(stated) === known(value) && close(stated ?? 0, value ?? 0));
  const others = ["test_calibration_error", "test_macro_average_precision", "test_label_accuracy"];
  const complete = !found.length || sameNames(m.test_accuracy_per_class ?? {}, m.class_names);
  must(agree && complete && others.every((key) => !known(m[key])), "The accuracies or the AUROC do not follow from test_counts and test_scores.");
}

/** [stated, computed] macro AUROC and standard error, from noisy histograms of scores and noisy counts (docs/metrics.md). */
const BINS = 24;
const histogramsOf = (m) => (m.n_classes === 2 ? 1 : m.n_classes);
function aurocOf(m, countStd) {
  const stated = [m.test_macro_auroc, m.test_macro_auroc_std], nothing = stated.map((one) => [one, null]);
  if (!known(m.test_scores)) return nothing;
  const release = m.releases.find((one) => one.purpose === "test AUROC"), histograms = histogramsOf(m);
  const shaped = m.test_scores.length === histograms && m.test_scores.every((both) => both.length === 2 && both.every((cells) => cells.length === BINS));
  must(release && shaped, "test_scores belong to no release of scores on private test rows.");
  const std = release.noise_multiplier * above(Math.sqrt(histograms)), add = (values) => values.reduce((sum, one) => sum + one, 0);
  const rows = m.test_counts.by_class.map(add), all = add(rows), found = [];
  m.test_scores.forEach((cells, n) => {
    const own = rows[n + rows.length - histograms], totals = [own, all - own];
    const variance = [2 * countStd ** 2, 2 * countStd ** 2 * (rows.length - 1)];
    if (!totals.every((total, k) => total > 0 && total >= 4 * Math.sqrt(variance[k]))) return;
    const share = cells.map((bins, k) => bins.map((one) => (one - (add(bins) - totals[k]) / BINS) / totals[k]));
    const curves = [0, 1].map((k) => share[1 - k].map((one, b) => add(k ? share[0].slice(b + 1) : share[1].slice(0, b)) + one / 2));
    const area = add(share[0].map((one, b) => one * curves[0][b])), means = curves.map((curve) => add(curve) / BINS);
    found.push([area, add(curves.map((curve, k) => std ** 2 * add(curve.map((one) => (one - means[k]) ** 2)) / totals[k] ** 2)),
      add(means.map((mean, k) => variance[k] * (mean - area) ** 2 / totals[k] ** 2)),
      add(share[0].map((one, b) => Math.max(one, 0) * Math.max(share[1][b], 0))) / 2]);
  });
  if (!found.length) return nothing;
  const mean = (values) => add(values) / found.length, column = (k) => found.map((one) => one[k]);
  const spread = mean(column(1)) / found.length + mean(column(2).map(Math.sqrt)) ** 2 + mean(column(3)) ** 2 / 3;
  // two errors of more than 0.25 reach from guessing to certainty, so no figure is stated
  return Math.sqrt(spread) > 0.25 ? nothing : [[stated[0], Math.min(Math.max(mean(column(0)), 0), 1)], [stated[1], Math.sqrt(spread)]];
}

/* The form of test_figures.json, as docs/metrics.md lists its keys. */

const whole = (minimum) => ({ type: "integer", minimum });
const orNull = (schema) => ({ ...schema, type: [schema.type, "null"] });
const listOf = (items) => ({ type: "array", items });
const object = (properties) => ({ type: "object", properties, required: Object.keys(properties), additionalProperties: false });
const SHARE = { type: "number", minimum: 0, maximum: 1 }, METRIC = orNull(SHARE), INTERVAL = orNull({ type: "array", items: SHARE, minItems: 2, maxItems: 2 });
const TEST_FIGURES = {
  multiclass: object({
    test_rows: whole(1), test_accuracy: SHARE, balanced_accuracy: SHARE, macro_auroc: METRIC, calibration_error: SHARE,
    commonest_class: { type: "string" }, commonest_share: SHARE,
    per_class: { type: "object", additionalProperties: object({ n: whole(0), recall: METRIC, recall_interval: INTERVAL,
      predicted: whole(0), precision: METRIC, precision_interval: INTERVAL, auroc: METRIC }) },
    confusion_matrix: orNull(listOf(listOf(whole(0)))),
    calibration: listOf(object({ n: whole(1), confidence: { type: "number" }, accuracy: { type: "number" } })),
  }),
  multilabel: object({
    test_rows: whole(1), macro_auroc: METRIC, macro_average_precision: METRIC, label_accuracy: SHARE, commonest_accuracy: SHARE,
    per_label: { type: "object", additionalProperties: object({ n: whole(0), predicted: whole(0), accuracy: SHARE,
      accuracy_interval: INTERVAL, auroc: METRIC, average_precision: METRIC, recall: METRIC, recall_interval: INTERVAL,
      precision: METRIC, precision_interval: INTERVAL }) },
  }),
};
const OF_FIGURES = {
  multiclass: { n_test: "test_rows", test_accuracy: "test_accuracy", test_balanced_accuracy: "balanced_accuracy",
    test_macro_auroc: "macro_auroc", test_calibration_error: "calibration_error" },
  multilabel: { n_test: "test_rows", test_macro_auroc: "macro_auroc", test_label_accuracy: "label_accuracy",
    test_macro_average_precision: "macro_average_precision" },
};
const total = (values) => values.reduce((sum, one) => sum + one, 0);

/** test_figures.json must say what the manifest says, and agree with itself. */
function checkTestFigures(bytes, m) {
  const typed = decoded(textOf(bytes, "test_figures.json"), "test_figures.json"), task = m.task ?? "multiclass";
  const path = misfit(TEST_FIGURES[task], typed), figures = plain(typed);
  must(path === null, `test_figures.json lacks ${shown(path)}, or holds another value there than linprobe writes.`);
  const parts = figures.per_class ?? figures.per_label, agree = (right) => must(right, "test_figures.json contradicts itself or the manifest.");
  agree(sameJson([...(typed.get("per_class") ?? typed.get("per_label")).keys()], m.class_names));
  for (const [key, name] of Object.entries(OF_FIGURES[task])) agree(!(key in m) || sameJson(m[key], figures[name]));
  const one = m.class_names.map((name) => parts[name]);
  if (task === "multilabel") return checkLabels(figures, one, agree);
  agree(sameJson(one.map((part) => part.recall), m.class_names.map((name) => m.test_accuracy_per_class?.[name] ?? null)));
  const n = one.map((part) => part.n), hits = one.map(hitsOf), rows = figures.test_rows, most = Math.max(...n);
  for (const parts of [one.map((part) => part.predicted), n, figures.calibration.map((bin) => bin.n)]) agree(total(parts) === rows);
  one.forEach((part, k) => agree(sharesAgree(part, { recall: [hits[k], part.n], precision: [hits[k], part.predicted] })));
  agree(close(total(hits) / rows, figures.test_accuracy));
  agree(figures.commonest_class === m.class_names[n.indexOf(most)] && figures.commonest_share === most / rows);
  const matrix = figures.confusion_matrix;
  if (matrix === null) return undefined;
  agree(matrix.length === n.length && matrix.every((row, k) => row.length === n.length && total(row) === n[k]));
  return agree(one.every((part, k) => total(matrix.map((row) => row[k])) === part.predicted && matrix[k][k] === hits[k]));
}
/** Number of correct predictions among the rows of a class, or with a label. */
const hitsOf = (part) => Math.round(part.n * (part.recall ?? 0));
const Z = 1.9599639845400545; // of intervals at 95 % (Wilson 1927)
/** Whether shares and their intervals are of the rows that count among some rows: [hits, n] by name. */
function sharesAgree(part, counts) {
  return Object.entries(counts).every(([name, [hits, n]]) => {
    const share = part[name], interval = part[`${name}_interval`];
    if (hits < 0 || hits > n || !n) return hits === 0 && n === 0 && share === null && interval === null;
    const middle = (hits + Z ** 2 / 2) / (n + Z ** 2), half = (Z / (n + Z ** 2)) * Math.sqrt((hits * (n - hits)) / n + Z ** 2 / 4);
    const ends = [hits === 0 ? 0 : middle - half, hits === n ? 1 : middle + half];
    return known(share) && known(interval) && close(share, hits / n) && ends.every((end, k) => close(interval[k], end));
  });
}

function checkLabels(figures, one, agree) {
  const rows = figures.test_rows, mean = (values) => (values.length ? total(values) / values.length : null);
  for (const [key, name] of [["macro_auroc", "auroc"], ["macro_average_precision", "average_precision"], ["label_accuracy", "accuracy"]]) {
    const expected = mean(one.map((part) => part[name]).filter(known));
    agree(known(expected) === known(figures[key]) && close(expected ?? 0, figures[key] ?? 0));
  }
  agree(close(mean(one.map((part) => Math.max(part.n, rows - part.n) / rows)), figures.commonest_accuracy));
  for (const part of one) {
    const hits = hitsOf(part), both = 0 < part.n && part.n < rows, right = rows - part.n - part.predicted + 2 * hits;
    agree(part.n <= rows && part.predicted <= rows && known(part.auroc) === both && known(part.average_precision) === both);
    agree(sharesAgree(part, { accuracy: [right, rows], recall: [hits, part.n], precision: [hits, part.predicted] }));
  }
}

const HISTOGRAM = object({ bin_edges: listOf({ type: "number" }), noisy_counts: listOf({ type: "integer" }) });
for (const key of "what noise_std epsilon_charged epsilon_of_run_now run file".split(" ")) HISTOGRAM.properties[key] = {};
function checkHistogram(bytes, where) {
  const typed = decoded(textOf(bytes, where), where), path = misfit(HISTOGRAM, typed);
  must(path === null, `${where} lacks ${shown(path)}, or holds another key or value there than linprobe writes.`);
  const counts = typed.get("noisy_counts");
  must(counts.length && typed.get("bin_edges").length === counts.length + 1, `${where} holds no histogram.`);
}

/* Archives: zip files, and the .npz files of NumPy, which are zip files of arrays. */

const MOST_BYTES = 2 ** 31;
const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});
function crc32(bytes) {
  let crc = 0xffffffff;
  for (let n = 0; n < bytes.length; n++) crc = CRC_TABLE[(crc ^ bytes[n]) & 255] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}

/** The members of a zip file, stored or deflated, by name. A name that ends in / is a folder. kind: of a refusal. */
async function unzipped(bytes, where, kind) {
  const bad = (what) => refuse(`${where} cannot be opened: ${what}.`, kind);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let end = bytes.length - 22;
  while (end >= 0 && end > bytes.length - 65558 && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0 || view.getUint32(end, true) !== 0x06054b50) bad("it is no zip file, or not all of it is there");
  const count = view.getUint16(end + 10, true), members = new Map();
  let place = view.getUint32(end + 16, true), sum = 0;
  const list = place, alone = "it holds bytes that belong to no file", spans = [];
  if (place + view.getUint32(end + 12, true) !== end || end + 22 !== bytes.length) bad(alone);
  try {
    for (let n = 0; n < count; n++) {
      if (view.getUint32(place, true) !== 0x02014b50) bad("its list of files is damaged");
      const [flags, method] = [view.getUint16(place + 8, true), view.getUint16(place + 10, true)];
      const [crc, packed, size] = [16, 20, 24].map((at) => view.getUint32(place + at, true));
      const [name, extra, comment] = [28, 30, 32].map((at) => view.getUint16(place + at, true));
      const local = view.getUint32(place + 42, true);
      const path = textOf(bytes.subarray(place + 46, place + 46 + name), where, kind);
      if (flags & 1) bad("it has a password");
      if (members.has(path)) bad(`it holds ${shown(path)} twice`);
      if (packed === 0xffffffff || size === 0xffffffff || (sum += size) > MOST_BYTES) refuse(`${where} is too large for a browser. Use linprobe verify.`, "unreadable");
      if (view.getUint32(local, true) !== 0x04034b50) bad("a file in it is damaged");
      const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
      const raw = bytes.subarray(start, start + packed);
      spans.push([local, start + packed, flags & 8 ? 24 : 0]);
      const content = method === 0 ? raw : method === 8 ? await inflated(raw, size) : bad("it is packed in an unknown way");
      if (content.length !== size || crc32(content) !== crc) bad(`${shown(path)} in it is damaged`);
      members.set(path, content);
      place += 46 + name + extra + comment;
    }
    if (place !== end) bad(alone);
    let least = 0, most = 0; // where a file begins: after the one before, and its sizes, at most 24 bytes, if they follow
    for (const [from, to, sizes] of [...spans.sort((a, b) => a[0] - b[0]), [list, list, 0]]) {
      if (from < least || from > most) bad(alone);
      [least, most] = [to, to + sizes];
    }
  } catch (error) {
    if (error instanceof Refusal) throw error;
    bad("it is damaged");
  }
  return members;
}
async function inflated(raw, size) {
  const reader = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const content = new Uint8Array(size);
  for (let length = 0; ;) {
    const { done, value } = await reader.read();
    if (done) return length === size ? content : content.subarray(0, length);
    content.set(value, length); // throws if it is longer than it says
    length += value.length;
  }
}

/** An array of an .npz file: its header, type, shape, whether it is stored by column, and a view of its data. */
function readArray(name, bytes, where) {
  const magic = String.fromCharCode(...bytes.subarray(0, 8)) === "\x93NUMPY\x01\x00";
  const length = magic ? bytes[8] + 256 * bytes[9] : 0, header = String.fromCharCode(...bytes.subarray(10, 10 + length));
  const found = /^\{'descr': '([<|][a-zA-Z]\d+)', 'fortran_order': (False|True), 'shape': \(((?:\d+, )*\d+|\d+,|)\), \} *\n$/.exec(header);
  must(found && (10 + length) % 64 === 0 && length < 10000, `${where}: ${shown(name)} is no plain array.`);
  const type = found[1], byColumn = found[2] === "True", shape = found[3].split(",").filter((text) => text.trim()).map(Number);
  const width = Number(type.slice(2)) * (type[1] === "U" ? 4 : 1), size = shape.reduce((a, b) => a * b, 1);
  must(bytes.length === 10 + length + size * width, `${where}: ${shown(name)} has another size than it says.`);
  return { header, type, shape, byColumn, data: bytes.slice(10 + length) };
}
/** The header that NumPy writes: 21 places for the length of the first axis, and at least one space to the multiple of 64. */
function headerOf({ type, shape, byColumn }) {
  const long = shape.filter((length) => length > 1).length;
  const order = byColumn && long > 1 ? "True" : "False", first = shape[order === "True" ? shape.length - 1 : 0];
  const stated = `{'descr': '${type}', 'fortran_order': ${order}, 'shape': (${shape.join(", ")}${shape.length === 1 ? "," : ""}), }`;
  const used = 10 + stated.length + 21 - String(first).length + 1;
  return stated.padEnd(used + 64 - used % 64 - 11) + "\n";
}

/** model.npz: weights and bias of the stated shape, finite, and not one byte besides. */
async function checkModel(bytes, m, where = "model.npz") {
  const members = await unzipped(bytes, where), names = [...members.keys()];
  must(sameJson(names, ["weights.npy", "bias.npy"]), `${where} holds ${shown(names.join(", "))}, and only weights and bias are allowed.`);
  const [weights, bias] = names.map((name) => readArray(name, members.get(name), where));
  const alone = [45, 20].some((version) => [3, 0].some((system) => sameBytes(bytes, saved(members, version, system))));
  must(alone && [weights, bias].every((one) => one.header === headerOf(one)), `${where} holds bytes besides weights and bias.`);
  const voters = weights.shape.length === 3 ? weights.shape.slice(0, 1) : [];
  const right = [weights, bias].every((one) => one.type === "<f4") && weights.data.length &&
    sameJson(weights.shape, [...voters, m.n_features, m.n_classes]) && sameJson(bias.shape, [...voters, m.n_classes]);
  must(right, `${where} has another shape than the manifest says.`);
  const numbers = [weights, bias].map((one) => new Float32Array(one.data.buffer));
  must(numbers.every((one) => one.every(Number.isFinite)), `${where} holds values that are no numbers.`);
  return numbers[0].length + numbers[1].length;
}

/** The zip file that numpy.savez writes: stored, 1980-01-01, nothing between the members. Sizes are in ZIP64 fields
    (version 45, Python 3.11.4 and later), or in both places (version 20, earlier). system: 0 for Windows, 3 for others. */
function saved(members, version, system) {
  const locals = [], central = [];
  let place = 0;
  for (const [path, content] of members) {
    const name = utf8.encode(path), crc = crc32(content), size = content.length;
    const common = [0, 0, 0, 0x0021]; // flags, method, time, date
    const stated = version === 45 ? 0xffffffff : size;
    const local = record([4, 0x04034b50], [2, version], ...common.map((value) => [2, value]), [4, crc], [4, stated], [4, stated],
      [2, name.length], [2, 20], name, [2, 1], [2, 16], [8, size], [8, size]);
    central.push(record([4, 0x02014b50], [1, version], [1, system], [2, version], ...common.map((value) => [2, value]), [4, crc], [4, size], [4, size],
      [2, name.length], [2, 0], [2, 0], [2, 0], [2, 0], [4, 0x01800000], [4, place], name));
    locals.push(local, content);
    place += local.length + size;
  }
  const listed = central.reduce((sum, one) => sum + one.length, 0), n = members.size;
  return record(...locals, ...central, [4, 0x06054b50], [4, 0], [2, n], [2, n], [4, listed], [4, place], [2, 0]);
}
/** Bytes from [width, number] pairs, little-endian, and byte arrays. */
function record(...fields) {
  const length = fields.reduce((sum, one) => sum + (one instanceof Uint8Array ? one.length : one[0]), 0);
  const bytes = new Uint8Array(length);
  let place = 0;
  for (const one of fields) {
    if (one instanceof Uint8Array) bytes.set(one, place);
    else for (let n = 0; n < one[0]; n++) bytes[place + n] = Math.floor(one[1] / 256 ** n) % 256;
    place += one instanceof Uint8Array ? one.length : one[0];
  }
  return bytes;
}
function sameBytes(found, expected) {
  return found.length === expected.length && found.every((byte, n) => byte === expected[n]);
}

/** per_record.npz must be the file that the manifest commits to. It is private. */
async function checkPerRecord(bytes, m) {
  const where = "per_record.npz", members = await unzipped(bytes, where), arrays = {};
  for (const [path, content] of members) {
    must(["note.npy", "id.npy", "mu.npy", "renyi.npy", "key.npy"].includes(path), `${where} holds ${shown(path)}, which is no part of it.`);
    arrays[path.slice(0, -4)] = readArray(path, content, where);
  }
  const { note, id, mu, renyi, key } = arrays;
  const right = id && mu && renyi && key && id.type.startsWith("<U") && mu.type === "<f8" && renyi.type === "<f4" && key.type === "|u1";
  must(right && id.shape.length === 1 && mu.shape.length === 1, `${where} lacks an array, or one is of another kind.`);
  must(!note || texts(note)[0] === "PRIVATE: derived from private rows without noise; do not publish", `${where} has another note.`);
  const ids = texts(id);
  must(ids.length === m.n_private, `${where} names ${ids.length} records, and n_private is ${m.n_private}.`);
  const digest = await sha256(record(utf8.encode(ids.join("\0")), mu.data, renyi.data));
  must((await hmac(key.data, digest)) === m.per_record_commitment, `${where} was edited, or belongs to another run.`);
}
function texts(array) {
  const width = Number(array.type.slice(2)), points = new Uint32Array(array.data.buffer), count = width ? points.length / width : 0;
  return Array.from({ length: count }, (_, n) =>
    String.fromCodePoint(...points.subarray(n * width, (n + 1) * width)).replace(/\0+$/, ""));
}
async function hmac(key, text) {
  const secret = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return hex(await crypto.subtle.sign("HMAC", secret, utf8.encode(text)));
}

/** Whether the manifest was signed by the holder of a key, PEM text. */
async function checkSignature(files, pem) {
  must(!/PRIVATE KEY/.test(pem), "This is a private key. Keep it secret. The check needs the public key.", "key");
  const body = /-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----/.exec(pem);
  must(body, "This is no public key. It begins with -----BEGIN PUBLIC KEY-----.", "key");
  let key;
  try {
    const spki = Uint8Array.from(atob(body[1].replace(/\s/g, "")), (one) => one.charCodeAt(0));
    key = await crypto.subtle.importKey("spki", spki, { name: "Ed25519" }, false, ["verify"]);
  } catch (error) {
    refuse(error?.name === "NotSupportedError" ? "This browser cannot check Ed25519 signatures. Use a newer one." : "This is no Ed25519 public key.", "key");
  }
  const signature = files.get("manifest.json.sig");
  must(signature, "The run is not signed: it has no manifest.json.sig.");
  const right = await crypto.subtle.verify({ name: "Ed25519" }, key, signature, files.get("manifest.json"));
  must(right, "The signature is not by this key, or the manifest was changed after it was signed.");
}

/** Judge a run folder: contents by name, names of folders in it, and the public key of its maker, PEM text or "".
    absent: listed files that a copy of the run in a report leaves out. shortened: whether paths in its manifest are shortened.

    Returns the manifest, what the ledger costs, and what was checked. Throws a Refusal. */
async function judged(files, folders, pem, schema, { absent = [], shortened = false } = {}) {
  must(files.has("manifest.json"), "There is no manifest.json: this is no run folder, or not all of it.", "unreadable");
  if (pem) await checkSignature(files, pem);
  const [m, typed] = readManifest(files.get("manifest.json"), schema);
  const left = Object.keys(m.files).filter((name) => absent.includes(name));
  for (const [name, digest] of Object.entries(m.files)) {
    if (left.includes(name)) continue;
    must(files.has(name), `${name} is missing.`);
    must((await sha256(files.get(name))) === digest, `${name} was changed: its digest is not the one in the manifest.`);
  }
  const stranger = [...folders, ...files.keys()].find((name) => folders.includes(name) || (!known(m.files[name]) && !UNLISTED.has(name)));
  must(stranger === undefined, `The folder holds ${shown(stranger)}, which the manifest does not list.`, "foreign");
  const content = new Map([...typed].filter(([key]) => key !== "manifest_digest"));
  const digest = await sha256(utf8.encode(encoded(content, { sorted: true })));
  must(shortened || digest === m.manifest_digest, "manifest.json was edited: its digest does not match its content.");
  const uncovered = PAGES.filter((name) => files.has(name) && !known(m.files[name]));
  must(!pem || !uncovered.length, `${uncovered.join(" and ")} are not covered by the signature. Move them away, and look again.`);
  m.unit ??= "record";
  const { events, selection } = readLedger(files.get("ledger.jsonl"));
  must(sameSelection(m.selection, selection), "The manifest's selection is not the ledger's.");
  const history = readHistory(files.get("history.csv"), m.steps);
  if (!selection) checkSensitivities(m, events, history);
  checkDerived(m, selection);
  const cost = known(m.accountant) ? recomputed(m, events, selection) : withoutNoise(m, events, selection);
  const numbers = left.includes("model.npz") ? null : await checkModel(files.get("model.npz"), m);
  if (m.refined && !left.includes("unrefined.npz")) await checkModel(files.get("unrefined.npz"), m, "unrefined.npz");
  if (files.has("test_figures.json")) checkTestFigures(files.get("test_figures.json"), m);
  for (const { file } of m.published) if (known(file) && files.has(file)) checkHistogram(files.get(file), file);
  if (files.has("per_record.npz")) await checkPerRecord(files.get("per_record.npz"), m);
  return { manifest: m, cost, events: events.length, numbers, left, shortened, uncovered, files: [...files.keys()], signed: pem ? "checked" : left.length ? "elsewhere" : files.has("manifest.json.sig") ? "unchecked" : "none" };
}
const sameSelection = (a, b) => (!known(a) && !known(b)) || (known(a) && known(b) && a.distribution === b.distribution &&
  a.mean_repetitions === b.mean_repetitions && a.runs.length === b.runs.length && a.runs.every((run, n) => sameRelease(run, b.runs[n])));
