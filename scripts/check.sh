#!/usr/bin/env bash
# Runs the test suites and ends with "N passed, N failed" over all subtests. Environment: BUILD (build folder), SAN
# (sanitizers; then everything runs in a build of its own and nowhere else), ALL=1 (also the suites that "make check"
# leaves out), FIXTURES (folder with weights that are too large to commit), MESON_FLAGS.
set -uo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build} SAN=${SAN:-} ALL=${ALL:-} FIXTURES=${FIXTURES:-}
read -r -a flags <<<"${MESON_FLAGS:-}"
logs=()

# prepare DIR [meson option...]: configures on first use and builds
prepare() {
    local dir=$1
    shift
    if [ ! -f "$dir/build.ninja" ]; then
        meson setup "$dir" "${flags[@]}" "$@" || return 1
    fi
    ninja -C "$dir" all meson-test-prereq
}

# suites DIR LABEL [meson test option...]: runs them and remembers the log for the count
suites() {
    local dir=$1 label=$2
    shift 2
    rm -f "$dir/meson-logs/testlog.json"
    echo "== $label"
    meson test -C "$dir" --no-rebuild --print-errorlogs "$@"
    logs+=("$label=$dir/meson-logs/testlog.json")
}

# sanitize LIST: meson options of a sanitized build. Warnings are the plain build's business: gcc's flow analysis gives false
# alarms in instrumented code.
sanitize() {
    echo "-Dwerror=false -Ddebug=true -Doptimization=1 -Db_sanitize=$1 -Db_lundef=false"
}

export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:allocator_may_return_null=1
export TSAN_OPTIONS=halt_on_error=1

left_out=()
select=(--no-suite large --no-suite long)
if [ -n "$ALL" ]; then
    select=(--no-suite large)
    if [ -n "$FIXTURES" ]; then
        [ -d "$FIXTURES" ] || { echo "FIXTURES=$FIXTURES: no such folder" >&2; exit 1; }
        STRATA_FIXTURES=$(realpath "$FIXTURES")
        export STRATA_FIXTURES
        select=()
    else
        left_out=(large)
    fi
fi

if [ -n "$SAN" ]; then
    dir=build-${SAN//,/-}
    # shellcheck disable=SC2046  # a list of options
    prepare "$dir" $(sanitize "$SAN") || exit 1
    suites "$dir" "sanitizers $SAN" "${select[@]}" --timeout-multiplier 10
else
    prepare "$BUILD" || exit 1
    suites "$BUILD" "all suites" "${select[@]}"
    # shellcheck disable=SC2046
    prepare build-asan $(sanitize address,undefined) || exit 1
    suites build-asan "unit, golden and fault under address,undefined" --suite unit --suite golden --suite fault "${select[@]}" \
        --timeout-multiplier 10
    dir=$BUILD
fi
extra=()
if [ -n "$ALL" ]; then
    # The images of every architecture, each read back.
    [ -f build-images/build.ninja ] || meson setup build-images -Dgpu_archs=all "${flags[@]}" || exit 1
    ninja -C build-images tests/runtime/test-code_objects || exit 1
    suites build-images "images of every architecture" code_objects
    if bash scripts/portable.sh; then extra=(--passed 1); else extra=(--failed 1); fi
    # It opens OpenSSL itself.
    ninja -C build-portable tests/api/scripted || exit 1
    suites build-portable "TLS of the portable build" api-tls
fi
for suite in "${left_out[@]}"; do
    echo "not run (give FIXTURES=DIR):"
    meson test -C "$dir" --no-rebuild --list --suite "$suite" 2>/dev/null | sed 's/^/  /'
done
exec python3 scripts/count.py "${extra[@]}" "${logs[@]}"
