/* Asks the check of verify.html, or of a report, questions: node officer.mjs PAGE, a JSON object a line in, one out. */

import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import vm from "node:vm";

const page = readFileSync(process.argv[2], "utf8");
const [, core] = /\/\* check begins \*\/([\s\S]*)\/\* check ends \*\//.exec(page);
const names = "judged, verdict, unzipped, Refusal, SCHEMA, holds, gaussianEpsilon, gaussianFigures, costOf, selectionEpsilon, rightGuesses, place, atPlace, STATED_KEYS, CHECKED_KEYS, compared: typeof compared === 'function' ? compared : null, runInZip: typeof runInZip === 'function' ? runInZip : null";
const check = vm.runInThisContext(`(() => { "use strict"; ${core}; return { ${names} }; })()`);

/** What a browser sees of a folder: it follows links, and reads a file once. */
function contents(folder) {
  const files = new Map(), folders = [];
  for (const name of readdirSync(folder)) {
    const path = join(folder, name), found = statSync(path);
    if (found.isDirectory()) folders.push(name);
    else files.set(name, new Uint8Array(readFileSync(path)));
  }
  return { files, folders };
}

const answers = {
  async run({ folder, zip, key = "" }) {
    try {
      const { files, folders, outside = 0 } = zip ? await check.runInZip(new Uint8Array(readFileSync(zip)), zip) : contents(folder);
      const found = await check.judged(files, folders, key, check.SCHEMA);
      return { ...check.verdict(found), outside };
    } catch (error) {
      if (error instanceof check.Refusal) return { refused: error.message, kind: error.kind };
      throw error;
    }
  },
  async report({ page }) {
    const html = readFileSync(page, "utf8");
    const [, shortened, packed] = /<template id="run-files" data-shortened="(\w+)">([^<]*)</.exec(html);
    const written = Object.fromEntries([...html.matchAll(/data-figure="(\w+)">([^<]*)</g)].map(([, name, text]) => [name, text]));
    try {
      return await check.compared(packed, shortened === "true", written);
    } catch (error) {
      if (error instanceof check.Refusal) return { refused: error.message };
      throw error;
    }
  },
  async gaussian({ settings }) {
    return settings.map(([mu, delta, epsilon]) => [check.holds(epsilon, delta, mu), check.holds(check.atPlace(check.place(epsilon) - 1n), delta, mu)]);
  },
  async gaussianEpsilon({ settings }) {
    return settings.map(([mu, delta]) => check.gaussianEpsilon(mu, delta));
  },
  async figures({ releases }) {
    return check.gaussianFigures(releases);
  },
  async epsilon({ releases, delta }) {
    return check.costOf(releases).epsilon(delta);
  },
  async selection({ runs, mean, delta }) {
    return check.selectionEpsilon(runs, mean, delta).epsilon;
  },
  async keys() {
    return { stated: check.STATED_KEYS, checked: check.CHECKED_KEYS };
  },
  async guesses({ mus }) {
    return mus.map(check.rightGuesses);
  },
};
for await (const line of createInterface({ input: process.stdin })) {
  const question = JSON.parse(line);
  console.log(JSON.stringify(await answers[question.ask](question)));
}
