#!/bin/sh
# Strata beside llama.cpp on the processor: bench/peer/run.sh STRATA FILE.gguf... (README.md has the options).
set -e
here=$(cd "$(dirname "$0")" && pwd)
if [ ! -d "$here/node_modules/node-llama-cpp" ]; then
    (cd "$here" && npm install --no-audit --no-fund --no-package-lock --omit=optional --ignore-scripts >&2)
fi
exec node "$here/compare.mjs" "$@"
