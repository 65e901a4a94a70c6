/* What the check found, in plain words. */

const ONE = { record: "record", owner: "person" }, MANY = { record: "records", owner: "people" };
const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
const percentAbove = (share) => `${Math.min(100, Math.ceil(share * 1000 + 1e-9) / 10)} %`;
const plainDelta = (delta) => {
  const [digits6, point] = decimal(Number(roundedUp(delta)));
  const digits = point > -12 ? positional(digits6, point) : roundedUp(delta), once = Math.floor(1 / delta + 1e-6);
  return once > 1 && once < 1e12 ? `${digits} (1 in ${once.toLocaleString("en")})` : digits;
};

const ALMOST_NOTHING = 0.99; // share of right guesses from which a promise has no tick

/** status: "private" or "not private"; look: "good", "unsure" or "bad"; sentence first, then the three lists. */
function verdict({ manifest: m, cost, events, numbers, left = [], shortened = false, uncovered, signed, files = [] }) {
  const found = { promise: null, proved: proved(m, cost, events, numbers, signed, files, left, shortened), opinion: opinion(m, cost), stated: stated(m, signed, uncovered, files, left) };
  found.keys = STATED_KEYS.filter((key) => key in m);
  found.figures = figures(m, cost);
  found.private = m.private;
  found.warning = files.includes("per_record.npz")
    ? "This folder holds per_record.npz. That file is private: it must not leave your organisation. linprobe release makes a folder without it." : null;
  if (!m.private) {
    const seeded = m.seed_kind === "insecure";
    return { ...found, status: "not private", look: "bad", epsilon: null, sentence: seeded
      ? "Not private: the noise came from a seed that somebody chose."
      : "Not private: the private records were used without protection.",
    promise: seeded ? "Whoever knows the seed can subtract the noise. Treat the model as you treat the private data."
      : "The model may reveal single records. Treat it as you treat the private data." };
  }
  if (cost.unused) {
    return { ...found, status: "private", look: "good", epsilon: 0, sentence: "Private: the run says that it did not use the private records. Epsilon is 0.",
      promise: "If that is so, the model says nothing about the private records. Nothing in a folder can prove it: ask the maker." };
  }
  const whom = m.unit === "owner" ? "every person, with all of that person’s records" : "every single record";
  const own = cost.epsilon <= cost.stated, epsilon = own ? cost.stated : cost.epsilon; // never below what was computed here
  const figure = `epsilon ${own || cost.proven ? "" : "at most "}${roundedUp(epsilon)}`;
  const more = own || cost.proven ? "" : ` The run states epsilon ${roundedUp(cost.stated)}, by a finer method that this page does not repeat.`;
  const share = cost.mu === null ? (Math.exp(Math.min(epsilon, 50)) + m.delta) / (1 + Math.exp(Math.min(epsilon, 50))) + 1e-9 : rightGuesses(cost.mu);
  const weak = cost.mu !== null && share >= ALMOST_NOTHING; // the share of others is far above the true limit
  return { ...found, status: "private", look: weak ? "unsure" : "good", epsilon, sentence: `Private: ${figure}, for ${whom}.`,
    promise: (weak ? "At this epsilon the promise protects almost nothing. " : "") +
      `Somebody sees the model and guesses whether one ${ONE[m.unit]} was in the data. At even odds, they are right in at most ` +
      `${percentAbove(share)} of the cases, whatever they compute. A coin is right in 50 %. ` +
      (cost.mu === null ? "This share follows from epsilon and delta alone. The true limit is lower, and linprobe report states it: ask the maker. " : "") +
      `Epsilon is stated at delta ${plainDelta(m.delta)}.${more}` };
}

function proved(m, cost, events, numbers, signed, files, left, shortened) {
  const listed = Object.keys(m.files).length, copies = listed - left.length;
  const lines = [`${left.length ? `Copies of ${copies.toLocaleString("en")} of the` : "All"} ${count(listed, "file")} that the manifest lists are here, and none was changed since the manifest was written.`,
    `${shortened ? "Every value in the manifest" : "The manifest agrees with its own digest, and every value in it"} has the form that the published format asks for.`];
  if (signed === "checked") lines.unshift("The manifest was signed by the holder of the public key that you gave. The signature covers every file that the manifest lists.");
  if (cost.unused || !known(m.accountant)) lines.push("The ledger is empty: no noisy result is claimed.");
  else {
    const kinds = cost.releases.map((one) => `${one.count.toLocaleString("en")} for ${PURPOSES[one.purpose]}`).join(", ");
    lines.push(cost.selected ? "The ledger lists one private choice among runs, with the noise of each run."
      : `The ledger lists ${count(events, "noisy result")} from the private data: ${kinds}. The manifest repeats them faithfully.`);
    if (cost.proven && m.private) {
      lines.push(`What the ledger lists costs epsilon ${roundedUp(cost.epsilon)} at delta ${plainDelta(m.delta)}, computed anew here with exact arithmetic. The stated epsilon, ${roundedUp(cost.stated)}, is not smaller.`);
    }
    lines.push(`Delta is below 1 divided by the stated number of ${MANY[m.unit]}.`);
  }
  if (numbers === null) return lines;
  lines.push(`The model file holds ${numbers.toLocaleString("en")} numbers, the weights of ${m.n_features.toLocaleString("en")} features and ${count(m.n_classes, "class", "classes")}, and nothing else.`,
    "The folder holds no file that does not belong to a run.");
  if (files.includes("per_record.npz")) lines.push("The private file per_record.npz is the one that the manifest commits to.");
  return lines;
}

function opinion(m, cost) {
  if (!known(m.accountant) || cost.unused) return [];
  const lines = [];
  if (!cost.proven) {
    const least = `${Math.floor(cost.least * 100) / 100}`;
    lines.push(`A Renyi bound, computed here, gives epsilon at most ${roundedUp(cost.epsilon)}, and one test of membership gives at least ${least}. The run states ${roundedUp(cost.stated)}, by a finer method that this page does not repeat.`);
  } else if (cost.selected) lines.push(`The cost of choosing among runs, ${roundedUp(cost.epsilon)}, follows from a published theorem and the exact cost of a single run.`);
  if (known(m.test_counts) || m.test_rows === "public") {
    lines.push(known(m.test_counts) ? "The accuracies follow from the noisy counts that the manifest states." : "The accuracies agree with each other and with the table of test results.");
  }
  return lines;
}

function stated(m, signed, uncovered, files, left) {
  const lines = ["That an unchanged linprobe made this folder and drew the noise that the ledger lists. A forger could write a folder that agrees with itself." +
    (signed === "checked" ? " The signature says who vouches for it." : "")];
  if (left.length) lines.push(`What is not copied into this page: ${left.join(", ")}. Only the folder of the run has it, and verify.html checks it there.`);
  if (signed === "unchecked") lines.push("Who made the run: it is signed, but you gave no public key. Paste the key above to check it.");
  if (signed === "elsewhere") lines.push("Who made the run: a copy of its files shows no signature. verify.html checks it.");
  if (signed === "none") lines.push("Who made the run: it is not signed.");
  lines.push(...whom(m),
    `How the model was made: method ${m.method}, its options, the software, the date (${m.created.slice(0, 10)}), and that these weights are its result.`,
    ...(known(uncounted(m)) ? [`That run ${shown(uncounted(m))}, from which this one started, released nothing with noise: the ledger counts no release of it.`] : []),
    ...(followsResults(m) ? ["That no result decided the noise, the sampling rate or the number of steps of a later release: epsilon holds only then."] : []),
    "How accurate the model is.", ...(m.refined ? [`That public rows without labels${m.refined.strength ? ", and nothing else, turned unrefined.npz into" : " did not change"} the model.`] : []),
    "Other runs on the same data. Their costs add up with this one: ask whether there were any.");
  const read = ["config.toml", "history.csv", ...m.published.map((one) => one.file)].filter((name) => files.includes(name));
  lines.push(`${read.join(", ")}: unchanged, but what ${read.length > 1 ? "they say" : "it says"} was not judged here, except for clip norms.`);
  if (uncovered.length) lines.push(`${uncovered.join(" and ")}: no digest covers these pages.`);
  else if (files.includes("README.md")) lines.push("README.md and claim.yaml: unchanged, but what they say was not read here.");
  if (files.includes("verify.html")) lines.push("verify.html in this folder: not judged. Take the page from a place that you trust, not from the folder.");
  return lines;
}

/** Whom the run protected, and whom not. */
function whom(m) {
  const number = (n, what) => count(n, `${what} ${ONE[m.unit]}`, `${what} ${MANY[m.unit]}`);
  const tested = known(m.test_counts) ? `; and ${number(m.n_test, "private test")}, used for the noisy accuracy` : "";
  const open = [...(m.n_public ? [count(m.n_public, "public row")] : []), ...(m.test_rows === "public" ? [count(m.n_test, "test row")] : [])];
  const lines = [`${m.private ? "What was protected" : "Used, and not protected"}: ${number(m.n_private, "private")}${tested}.`];
  if (open.length) lines.push(`What was not protected: ${open.join(", and ")}.`);
  if (!m.public_shots) return lines;
  const people = known(m.n_public_owners) ? count(m.n_public_owners, "person", "people") : "people"; // 0.2 did not count them
  const shots = m.unit === "owner" ? people : count(m.public_shots * m.n_classes, "row");
  const rows = known(m.n_public_owners) && !known(m.public_file) ? ` (${count(m.n_public, "row")})` : "";
  return [...lines, `NOT protected: ${shots} of the same collection${rows}, taken out of the private data and made public.`];
}

function figures(m, cost) {
  const rows = [["run", m.run_id ?? "no id"], ["digest of the manifest", m.manifest_digest], ["made", m.created], ["method", `${m.method} (${m.paper})`], ["protects", !m.private ? "nobody" : m.unit === "owner" ? "people" : "single records"],
    ["private " + MANY[m.unit], m.n_private.toLocaleString("en")]];
  if (!known(m.accountant)) return rows;
  const seeded = m.private ? "" : ", if the seed were secret";
  return [...rows, [`epsilon stated${seeded}`, roundedUp(cost.stated)],
    [`epsilon computed here${seeded}`, `${roundedUp(cost.epsilon)}${cost.proven ? "" : " (Renyi bound)"}`], ["delta", plainDelta(m.delta)],
    ["mu of Gaussian differential privacy", known(m.gdp_mu) ? roundedUp(m.gdp_mu) : "none"],
    ...cost.releases.map((one) => [`noise multiplier, ${PURPOSES[one.purpose]}`,
      `${one.noise_multiplier}, ${one.count === 1 ? "once" : `${one.count.toLocaleString("en")} times`}${one.sampling_rate < 1 ? `, sampling rate ${one.sampling_rate}` : ""}`]),
    ["what it means, in full", m.guarantee]];
}
