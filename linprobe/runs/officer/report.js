/* The check inside a report: it judges the copy of the run that the report holds, and compares. */

/** Listed files that no report holds: the model, and what the check does not read. */
const NOT_HELD = ["model.npz", "unrefined.npz", "config.toml", "README.md", "claim.yaml"];

/** What the copy of a run says, beside what linprobe wrote into the report.
    packed: base64 of a zip file. written: the texts of the report by the name of the figure.
    Returns the verdict, whether all agree, the sentence that says so and its look, and [computed, "same", "in line", "DIFFERENT" or "not compared"] by name. */
async function compared(packed, shortened, written) {
  const files = await unzipped(Uint8Array.from(atob(packed.trim()), (one) => one.charCodeAt(0)), "The copy of the run");
  const found = await judged(files, [], "", SCHEMA, { absent: NOT_HELD, shortened }), { manifest: m, cost } = found;
  const how = !cost.proven ? "Renyi bound, coarser" : cost.selected || m.accountant !== GDP ? "by another method" : "";
  const figure = (value) => (known(value) ? roundedUp(value) : "none");
  const computed = {
    verdict: m.private ? "private" : "not private", epsilon: figure(cost.stated), ledger: figure(cost.epsilon),
    delta: figure(m.delta), releases: found.events.toLocaleString("en"), digest: m.manifest_digest,
  };
  const rows = Object.entries(written).map(([name, text]) => {
    // judged() has refused a stated epsilon that its other method does not allow
    if (name === "ledger" && how) return [name, [`${computed.ledger} (${how})`, "in line"]];
    if (name === "digest" && shortened) return [name, ["not computed: the copy names no folders", "not compared"]];
    return [name, [computed[name], computed[name] === text ? "same" : "DIFFERENT"]];
  });
  const agree = rows.every(([, [, same]]) => same !== "DIFFERENT");
  const but = rows.some(([, [, same]]) => same === "not compared")
    ? ", but for the digest of the manifest, which was not compared: the copy leaves out the names of folders. verify.html compares it in the folder of the run" : "";
  const words = agree
    ? `The two programs agree${m.private ? "" : " that this run is not private"}${but}. The second one has just run in this browser, on a copy of the run’s files that is in this page.`
    : "The two programs do not agree. Do not rely on this page. Ask for the run folder, and check it with verify.html from a place that you trust.";
  const look = !agree ? "bad" : m.private ? "good" : "unsure";
  return { rows: Object.fromEntries(rows), agree, words, look, verdict: verdict(found) };
}
/* check ends */

const $ = (id) => document.getElementById(id);
function say(kind, words) {
  $("second-words").textContent = words;
  $("second-words").className = `verdict ${kind}`;
}
function fill(list, lines) {
  list.replaceChildren(...lines.map((line) => Object.assign(document.createElement("li"), { textContent: line })));
}
async function second() {
  if (!globalThis.crypto?.subtle) {
    say("unsure", "This browser lets this page use no cryptography, so the second program did not run. Save the page, and open the file.");
    return;
  }
  const cells = new Map([...document.querySelectorAll("[data-figure]")].map((cell) => [cell.dataset.figure, cell]));
  const written = Object.fromEntries([...cells].map(([name, cell]) => [name, cell.textContent.trim()]));
  const held = $("run-files");
  try {
    const found = await compared(held.content.textContent, held.dataset.shortened === "true", written);
    for (const [name, [text, same]] of Object.entries(found.rows)) {
      const here = cells.get(name).nextElementSibling, agrees = here.nextElementSibling;
      here.textContent = text;
      agrees.textContent = same;
      if (same === "DIFFERENT") agrees.className = "bad";
    }
    say(found.look, found.words);
    for (const name of ["proved", "opinion", "stated"]) fill($(`second-${name}`), found.verdict[name]);
    $("second-lists").hidden = false;
  } catch (error) {
    if (error instanceof Refusal && error.kind === "unconfirmed") say("unsure", `The second program cannot confirm the epsilon. ${error.message} linprobe verify has a finer method.`);
    else if (error instanceof Refusal) say("bad", `The two programs do not agree. The second one refuses the copy of the run in this page: ${error.message} Do not rely on this page.`);
    else say("unsure", `The second program could not finish in this browser: ${error.message}. Open the page in a current one.`);
  }
}
second();
