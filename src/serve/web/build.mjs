// Bundles the page into dist/: one script, one style sheet, the document, the icon and the licences of the libraries.
import { build } from "esbuild";
import { copyFileSync, readFileSync, writeFileSync } from "node:fs";

const common = { bundle: true, minify: true, target: "es2022", legalComments: "none", logLevel: "warning" };
await build({ ...common, entryPoints: ["src/main.js"], outfile: "dist/app.js", format: "esm" });
await build({ ...common, entryPoints: ["src/app.css"], outfile: "dist/app.css" });
copyFileSync("src/index.html", "dist/index.html");
copyFileSync("src/icon.svg", "dist/icon.svg");

const parts = [];
for (const [name, file] of [["marked", "LICENSE"], ["dompurify", "LICENSE"]]) {
  const { version } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
  const text = readFileSync(`node_modules/${name}/${file}`, "utf8").trim();
  parts.push(`${name} ${version}\n\n${text}\n`);
}
writeFileSync("dist/licenses.txt", "Libraries in app.js and their licences.\n\n" + parts.join("\n----\n\n"));
