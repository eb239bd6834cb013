// Builds the page into dist/, or with --compare checks that dist/ is what the sources produce.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { gunzipSync, gzipSync } from "node:zlib";
import { build } from "esbuild";

const root = new URL("./", import.meta.url);
const compare = process.argv.includes("--compare");

// sourceFiles are all files that the assets depend on. assets_test.go has the same list.
function sourceFiles() {
  const sources = readdirSync(new URL("src/", root)).map((name) => "src/" + name);
  return ["build.mjs", "package-lock.json", "package.json", "tsconfig.json", ...sources].sort();
}

function hashOfSources() {
  const hash = createHash("sha256");
  for (const name of sourceFiles()) {
    const content = readFileSync(new URL(name, root));
    hash.update(`${name} ${content.length}\n`).update(content);
  }
  return hash.digest("hex") + "\n";
}

// hashesOfAssets has a line for each asset: its hash before compression, and its name.
function hashesOfAssets(files) {
  const line = (name) => `${createHash("sha256").update(files.get(name)).digest("hex")}  ${name}\n`;
  return [...files.keys()].sort().map(line).join("");
}

const { outputFiles } = await build({
  absWorkingDir: new URL(".", root).pathname,
  entryPoints: { app: "src/main.tsx", style: "src/style.css" },
  outdir: "out",
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "eof",
  charset: "utf8",
  write: false,
});
const files = new Map(outputFiles.map((f) => [f.path.split("/").pop(), Buffer.from(f.contents)]));
for (const name of ["index.html", "icon.svg"]) files.set(name, readFileSync(new URL("src/" + name, root)));

const dist = new URL("dist/", root);
if (compare) {
  const have = readdirSync(dist).filter((name) => name.endsWith(".gz")).sort();
  const want = [...files.keys()].map((name) => name + ".gz").sort();
  const differ = have.join() !== want.join() ||
    want.some((name) => !gunzipSync(readFileSync(new URL(name, dist))).equals(files.get(name.slice(0, -3))));
  const recorded = (name) => readFileSync(new URL(name, dist), "utf8");
  if (differ || recorded("sources.sha256") !== hashOfSources() || recorded("assets.sha256") !== hashesOfAssets(files)) {
    console.error("ui/dist does not match its sources: run make ui");
    process.exit(1);
  }
} else {
  rmSync(dist, { recursive: true, force: true });
  mkdirSync(dist);
  for (const [name, content] of files) writeFileSync(new URL(name + ".gz", dist), gzipSync(content, { level: 9 }));
  writeFileSync(new URL("sources.sha256", dist), hashOfSources());
  writeFileSync(new URL("assets.sha256", dist), hashesOfAssets(files));
}
