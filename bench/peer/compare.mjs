// Reading and generating speed of Strata and of llama.cpp on the same files, in turns: one round of a file is llama.cpp's
// prompt and generation, then Strata's. What other programs take from the machine hits both; medians of the rounds' ratios
// are what counts.
import {execFileSync} from "node:child_process";
import {readFileSync} from "node:fs";
import {cpus} from "node:os";
import {basename} from "node:path";
import {parseArgs} from "node:util";

import {getLlama} from "node-llama-cpp";

const {values: o, positionals: [strata, ...files]} = parseArgs({
    allowPositionals: true,
    options: {
        threads: {type: "string", short: "t", default: "2"},
        rounds: {type: "string", short: "r", default: "5"},
        prompt: {type: "string", short: "p", default: "512"},
        generate: {type: "string", short: "n", default: "64"}
    }
});
if (!files.length) {
    console.error("usage: run.sh [-t THREADS] [-r ROUNDS] [-p TOKENS] [-n TOKENS] STRATA FILE.gguf...");
    process.exit(1);
}
const [threads, rounds, prompt, generate] = [o.threads, o.rounds, o.prompt, o.generate].map(Number);

function median(list) {
    const sorted = [...list].sort((a, b) => a - b), half = sorted.length >> 1;
    return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

async function openPeer(llama, path) {
    const model = await llama.loadModel({modelPath: path, gpuLayers: 0});
    const context = await model.createContext({contextSize: prompt + generate + 64, batchSize: prompt, threads, sequences: 1});
    const vocabulary = model.fileInfo.metadata.tokenizer.ggml.tokens.length;
    const tokens = Uint32Array.from({length: prompt + generate}, (_, i) => 256 + (i * 7919 + 13) % (vocabulary - 1024));
    // The binding's own calls, below the package's queue of batches: one batch, logits of its last token.
    const decode = async (at, ids) => {
        context._ctx.initBatch(ids.length);
        context._ctx.addToBatch(0, at, ids, Uint32Array.of(ids.length - 1));
        await context._ctx.decodeBatch();
    };
    const run = async () => {
        context._ctx.disposeSequence(0);
        const start = performance.now();
        await decode(0, tokens.subarray(0, prompt));
        const read = performance.now();
        for (let i = 0; i < generate; i++)
            await decode(prompt + i, tokens.subarray(prompt + i, prompt + i + 1));
        return {prompt: prompt * 1e3 / (read - start), generate: generate * 1e3 / (performance.now() - read)};
    };
    await run(); // pages of the file, buffers
    return {run, close: () => model.dispose()};
}

// Strata warms up by itself before the one repetition that counts. -d: generation follows a prompt, as above.
function runStrata(path) {
    const bench = (...args) => JSON.parse(execFileSync(strata,
        ["bench", "-m", path, "-t", String(threads), "-r", "1", "-o", "json", "--prefill", String(prompt), ...args],
        {encoding: "utf8", stdio: ["ignore", "pipe", "ignore"]}))[0].avg_ts;
    return {
        prompt: bench("-p", String(prompt), "-n", "0"),
        generate: bench("-p", "0", "-n", String(generate), "-d", String(prompt))
    };
}

const llama = await getLlama({gpu: false, build: "never", maxThreads: threads, logLevel: "error"});
const release = JSON.parse(readFileSync(new URL("node_modules/node-llama-cpp/package.json", import.meta.url))).version;
console.log(`${cpus()[0].model.trim()}, ${cpus().length} processors; ${threads} threads; node-llama-cpp ${release}; ` +
    `${rounds} rounds in turns; prompt ${prompt}, generation ${generate} after it; tok/s, median (best)\n`);
console.log("| file | test | llama.cpp | Strata | ratio | lowest and highest ratio |\n|---|---|---|---|---|---|");
for (const path of files) {
    let peer;
    try {
        peer = await openPeer(llama, path);
    } catch (error) {
        console.log(`| ${basename(path)} | | does not load: ${error.message} | | | |`);
        continue;
    }
    const theirs = [], ours = [];
    for (let i = 0; i < rounds; i++) {
        theirs.push(await peer.run());
        ours.push(runStrata(path));
        console.error(`${basename(path)} round ${i + 1}: ${JSON.stringify([theirs[i], ours[i]])}`);
    }
    for (const test of ["prompt", "generate"]) {
        const ratios = ours.map((x, i) => x[test] / theirs[i][test]);
        const [a, b] = [theirs, ours].map((list) => {
            const rates = list.map((x) => x[test]);
            return [median(rates), Math.max(...rates)].map((x) => x.toFixed(x < 100 ? 1 : 0));
        });
        console.log(`| ${basename(path)} | ${test} | ${a[0]} (${a[1]}) | ${b[0]} (${b[1]}) | ${median(ratios).toFixed(2)} | ` +
            `${Math.min(...ratios).toFixed(2)} to ${Math.max(...ratios).toFixed(2)} |`);
    }
    await peer.close();
}
process.exit(0);
