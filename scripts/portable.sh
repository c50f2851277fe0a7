#!/usr/bin/env bash
# Builds the portable binaries in build-portable and fails if one of them needs a shared library beyond glibc's own.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=build-portable
[ -f $dir/build.ninja ] || meson setup $dir -Dportable=true
mapfile -t programs < <(ninja -C $dir -t targets all | sed -n 's#^\(src/cli/strata\(-device\)\?\):.*#\1#p')
ninja -C $dir "${programs[@]}"
bad=0
for program in "${programs[@]}"; do
    file=$dir/$program
    extra=$(ldd "$file" | awk '{print $1}' |
        grep -Ev '^(linux-vdso|libc|libm|libdl|libpthread|librt|libresolv)\.so|ld-linux' || true)
    if [ -n "$extra" ]; then
        echo "$file: needs" $extra >&2
        bad=1
    else
        echo "$file: only glibc, $(stat -c %s "$file") bytes"
    fi
done
exit $bad
