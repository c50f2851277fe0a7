#!/usr/bin/env bash
# Builds the fuzzers in build-fuzz (clang, address and undefined sanitizers) and runs each for FUZZ_SECONDS (60) from its corpus and what
# earlier runs found (build-fuzz/found). Fails if one finds something: the input then lies in build-fuzz/found.
# fuzz.sh [NAME...]: those alone.
set -uo pipefail
cd "$(dirname "$0")/.."
names=("$@")
if [ ${#names[@]} = 0 ]; then
    for file in tests/fuzz/fuzz_*.c; do
        name=${file#tests/fuzz/fuzz_}
        names+=("${name%.c}")
    done
fi
if [ ! -f build-fuzz/build.ninja ]; then
    CC=clang-19 meson setup build-fuzz -Dfuzz=true -Dgpu_archs=none -Db_sanitize=address,undefined -Db_lundef=false || exit 1
fi
ninja -C build-fuzz "${names[@]/#/tests/fuzz/fuzz-}" || exit 1
bad=0
for name in "${names[@]}"; do
    found=build-fuzz/found/$name
    mkdir -p "$found"
    log=$found.log
    if UBSAN_OPTIONS=print_stacktrace=1 "build-fuzz/tests/fuzz/fuzz-$name" -max_total_time="${FUZZ_SECONDS:-60}" -timeout=20 \
        -rss_limit_mb=3000 -artifact_prefix="$found-" "$found" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
        echo "$name: $(tail -n 1 "$log")"
    else
        echo "$name: failed, see $log"
        bad=1
    fi
done
exit $bad
