#!/usr/bin/env bash
# Builds the portable binaries in build-portable and fails if one of them needs a shared library beyond glibc's own, or if
# they are larger than 8 MiB together when stripped. That bound is for one GPU architecture: of the images in the binaries
# those of the largest one count.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=build-portable
# shellcheck disable=SC2086  # a list of options
[ -f $dir/build.ninja ] || meson setup $dir -Dportable=true ${MESON_FLAGS:-}
mapfile -t programs < <(ninja -C $dir -t targets all | sed -n 's#^\(src/cli/strata\(-device\)\?\):.*#\1#p')
ninja -C $dir "${programs[@]}"
bad=0 total=0 stripped=$(mktemp)
trap 'rm -f "$stripped"' EXIT
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
    strip -o "$stripped" "$file"
    total=$((total + $(stat -c %s "$stripped")))
done
# Bytes of all embedded images (MODULE.ARCH.zst) but those of the largest architecture; sources for OpenCL always count.
others=$(sed -n 's/^\.incbin "\(.*\)"$/\1/p' $dir/src/runtime/images_data.S | xargs stat -c '%s %n' |
    awk '{ n = split($2, part, "."); arch = part[n - 1] }
        arch ~ /^(sm_|gfx)/ { all += $1; of[arch] += $1; if (of[arch] > most) most = of[arch] } END { print all - most }')
total=$((total - ${#programs[@]} * others))
echo "together, stripped, with one architecture: $total bytes"
if [ "$total" -gt $((8 << 20)) ]; then
    echo "more than 8 MiB" >&2
    bad=1
fi
exit $bad
