#!/usr/bin/env bash
# clang-tidy and cppcheck over our own sources; fails on any finding. Formatting is checked first.
set -uo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
bad=0
mapfile -t all < <(git ls-files 'src/*.[ch]' 'include/*.h' 'tests/*.[ch]')
clang-format --dry-run -Werror "${all[@]}" || bad=1
mapfile -t sources < <(python3 - "$BUILD" <<'PY'
import json, os, sys
build = sys.argv[1]
root = os.getcwd()
seen = set()
for entry in json.load(open(os.path.join(build, "compile_commands.json"))):
    path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), root)
    if path.startswith(("src/", "tests/")) and path.endswith(".c") and path not in seen:
        seen.add(path)
        print(path)
PY
)
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy -p "$BUILD" --quiet --warnings-as-errors='*' \
    2> >(grep -v 'warnings\? generated' >&2) || bad=1
cppcheck --project="$BUILD/compile_commands.json" --quiet --inline-suppr --error-exitcode=1 -j "$(nproc)" \
    --enable=warning,performance,portability --suppress=missingIncludeSystem --suppress='*:*/build*/*' \
    -i tests --library=posix || bad=1
exit $bad
