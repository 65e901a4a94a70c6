/* The run folder in what was given. */

/** The run folder among files with paths: the folder of the manifest that lies highest. */
function runAmong(paths, folders) {
  const depth = (path) => path.split("/").length;
  const manifests = [...paths.keys()].filter((path) => /(^|\/)manifest\.json$/.test(path)).sort((a, b) => depth(a) - depth(b));
  if (!manifests.length) refuse("There is no manifest.json in what you gave: this is no run folder, or not all of it.", "unreadable");
  if (manifests[1] && depth(manifests[0]) === depth(manifests[1])) refuse("You gave several runs. Give one at a time.", "unreadable");
  const root = manifests[0].slice(0, -"manifest.json".length);
  const inside = [...paths].filter(([path]) => path.startsWith(root)).map(([path, file]) => [path.slice(root.length), file]);
  const nested = [...inside.map(([path]) => path), ...folders.filter((path) => path.startsWith(root)).map((path) => path.slice(root.length))]
    .filter((path) => path.includes("/")).map((path) => path.split("/")[0]).filter((name) => name !== "");
  const outside = paths.size - inside.length;
  return { files: new Map(inside.filter(([path]) => !path.includes("/"))), folders: [...new Set(nested)], outside };
}

/** The run folder in a zip file. Some programs of Windows write \ for /. macOS adds a folder __MACOSX with a file ._NAME for
    each NAME, which is left out; whatever else is there lies outside the run. */
async function runInZip(bytes, where) {
  const files = new Map(), folders = [];
  let strays = 0;
  for (const [name, content] of await unzipped(bytes, where, "unreadable")) {
    const path = name.replaceAll("\\", "/"), added = path.startsWith("__MACOSX/");
    if (files.has(path)) refuse(`${where} holds ${shown(path)} twice.`, "unreadable");
    if (path.split("/").includes("..")) refuse(`${where} holds ${shown(path)}, which leads out of its folder.`, "unreadable");
    if (path.endsWith("/")) folders.push(...(added ? [] : [path]));
    else if (!added) files.set(path, content);
    else if (!/\/\._[^/]+$/.test(path)) strays++;
  }
  const found = runAmong(files, folders);
  return { ...found, outside: found.outside + strays };
}
/* check ends */

/* The page: files in, the verdict out. All text is written as text. */

const $ = (id) => document.getElementById(id);
function made(tag, attributes = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  found.append(...children);
  return found;
}

/** Files with their paths, and folders, from a drop. The items are gone after the event, so all are asked at once. A page
    that was opened from a disk gets no entries from Chromium, but it gets handles. */
async function dropped(items) {
  const paths = new Map(), folders = [];
  const given = [...items].filter((item) => item.kind === "file").map((item) => {
    const entry = item.webkitGetAsEntry?.();
    if (!entry?.isDirectory) return { file: item.getAsFile() };
    return item.getAsFileSystemHandle ? { handle: item.getAsFileSystemHandle() } : { entry };
  });
  const ofHandle = async (handle, path) => {
    if (handle.kind === "file") return paths.set(path, await handle.getFile());
    folders.push(`${path}/`);
    for await (const [name, one] of handle.entries()) await ofHandle(one, `${path}/${name}`);
    return paths;
  };
  const ofEntry = async (entry, path) => {
    if (entry.isFile) return paths.set(path, await new Promise((resolve, reject) => entry.file(resolve, reject)));
    folders.push(`${path}/`);
    const reader = entry.createReader();
    for (;;) {
      const batch = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (!batch.length) return paths;
      for (const one of batch) await ofEntry(one, `${path}/${one.name}`);
    }
  };
  for (const { file, handle, entry } of given) {
    if (file) paths.set(file.name, file);
    else if (handle) await ofHandle(await handle, (await handle).name);
    else if (entry) await ofEntry(entry, entry.name);
  }
  return { paths, folders };
}

let last = null; // what was given last, to check it again with a key
let turns = 0;
async function look(given) {
  const { paths } = given;
  const pem = [...paths].find(([name]) => /\.(pem|pub)$/i.test(name));
  if (pem && paths.size === 1) {
    $("key").value = await pem[1].text();
    $("key-part").open = true;
    if (last) await look(last);
    return;
  }
  last = given;
  const turn = ++turns;
  busy(true);
  try {
    const found = await opened(given), size = [...found.files.values()].reduce((sum, one) => sum + (one.size ?? one.length), 0);
    if (size > MOST_BYTES) refuse("The folder is too large for a browser. Use linprobe verify.", "unreadable");
    const files = new Map();
    for (const [name, file] of found.files) files.set(name, file instanceof Uint8Array ? file : new Uint8Array(await file.arrayBuffer()));
    const judgement = verdict(await judged(files, found.folders, $("key").value.trim(), SCHEMA));
    if (turn === turns) show(judgement, found.outside);
  } catch (error) {
    if (turn === turns) showRefusal(error instanceof Refusal ? error : new Refusal("unreadable", `This page could not finish: ${error.message}.`));
  } finally {
    if (turn === turns) busy(false);
  }
}
async function opened({ paths, folders }) {
  const [[name, only]] = paths.size === 1 ? paths : [["", null]];
  if (!only || !/\.zip$/i.test(name)) return runAmong(paths, folders);
  if (only.size > MOST_BYTES) refuse("The zip file is too large for a browser. Use linprobe verify.", "unreadable");
  return runInZip(new Uint8Array(await only.arrayBuffer()), name);
}
function busy(on) {
  $("status").textContent = on ? "Checking…" : "";
  if (on) $("result").replaceChildren();
  document.body.classList.toggle("busy", on);
}

function list(title, note, lines, kind) {
  if (!lines.length) return [];
  return [made("section", { class: `part ${kind}` }, made("h3", {}, title), made("p", { class: "note" }, note),
    made("ul", {}, ...lines.map((line) => made("li", {}, line))))];
}
function card(kind, heading, ...more) {
  const title = made("h2", { id: "verdict" }, heading);
  const shape = $(`sign-${kind}`).content.cloneNode(true);
  return made("div", { class: `verdict ${kind}` }, shape, made("div", {}, title, ...more.filter(Boolean).map((text) => made("p", {}, text))));
}
function finish(...parts) {
  $("result").replaceChildren(...parts);
  $("result").scrollIntoView({ block: "start" });
}
function show(found, outside) {
  const figures = [...found.figures, ["checked", `${new Date().toISOString().slice(0, 16).replace("T", " ")} UTC`]];
  const rows = figures.map(([name, value]) => made("tr", {}, made("th", { scope: "row" }, name), made("td", {}, value)));
  const records = made("button", { type: "button", class: "quiet" }, "Print this for your records");
  records.addEventListener("click", () => window.print());
  finish(card(found.look, found.sentence, found.promise),
    ...(found.warning ? [made("p", { class: "warning" }, found.warning)] : []),
    ...(outside ? [made("p", { class: "warning" }, `What you gave holds ${count(outside, "file")} outside the folder of the run. Nothing there was checked.`)] : []),
    ...list("Proved here", "This page computed it from the files themselves.", found.proved, "proved"),
    ...list("Recomputed as a second opinion", "Computed here in another way than the run used. It supports what the run states, and does not prove its figure.", found.opinion, "opinion"),
    ...list("Stated only", "Nothing in the folder proves it. Ask the maker.", found.stated, "stated"),
    made("details", {}, made("summary", {}, `The ${found.keys.length} keys of the manifest that are stated only`), made("p", { class: "keys" }, found.keys.join(", "))),
    made("details", {}, made("summary", {}, "Figures for your records"), made("table", {}, made("tbody", {}, ...rows)), records));
}
const HEADINGS = {
  edited: "Do not trust this run.", newer: "This page is older than the run, or the run was edited.",
  unconfirmed: "This page cannot confirm the epsilon of this run.", unproven: "No proof covers the epsilon of this run.",
  foreign: "The folder holds something that is not part of the run.", unreadable: "Nothing was judged.", key: "The key could not be used.",
};
function showRefusal(error) {
  const advice = { edited: "Ask the maker for an unchanged copy. Do not rely on anything that the folder says.",
    newer: "Get the page that came out with the version of linprobe that made the run. Until then nothing is proved.",
    unconfirmed: "The run may be honest, and its epsilon may be too small. Do not rely on it before linprobe verify has accepted the run: its method is finer.",
    unproven: "The run may be unchanged: versions of linprobe before this page made such runs. Ask the maker for a run by a newer version, or for a copy from before the histogram.",
    foreign: "Check a copy of the folder without it. Until then nothing is proved. Systems add .DS_Store, Thumbs.db and desktop.ini by themselves; model hubs add .git, .gitattributes and .cache.",
    unreadable: "Give the whole folder that linprobe made, or a zip file of it.", key: "Nothing was judged with this key. Correct it, or empty the field." };
  finish(card(error.kind === "edited" ? "bad" : "unsure", HEADINGS[error.kind], error.message, advice[error.kind]));
}

function start() {
  const area = $("drop");
  for (const name of ["dragenter", "dragover"]) {
    document.addEventListener(name, (event) => { event.preventDefault(); area.classList.add("over"); });
  }
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) area.classList.remove("over"); });
  document.addEventListener("drop", async (event) => {
    event.preventDefault();
    area.classList.remove("over");
    try {
      const given = await dropped(event.dataTransfer.items);
      if (given.paths.size || given.folders.length) await look(given);
    } catch {
      showRefusal(new Refusal("unreadable", "This browser does not let the page read what was dropped. Use the buttons, or drop a zip file."));
    }
  });
  const picked = (input) => {
    const paths = new Map([...input.files].map((file) => [file.webkitRelativePath || file.name, file]));
    input.value = "";
    if (paths.size) look({ paths, folders: [] });
  };
  for (const [button, input] of [["choose-folder", "folder"], ["choose-zip", "zip"], ["choose-key", "key-file"]]) {
    $(button).addEventListener("click", () => $(input).click());
    $(input).addEventListener("change", () => picked($(input)));
  }
  window.addEventListener("beforeprint", () => document.querySelectorAll("#result details").forEach((part) => { part.open = true; }));
  $("key").addEventListener("change", () => last && look(last));
  if (!globalThis.crypto?.subtle) showRefusal(new Refusal("unreadable", "This browser lets this page use no cryptography. Open the file itself, or an https address, in a current browser."));
}
start();
