#!/bin/sh
# deps.sh GROUP...: looks for what a group (build, check, lint, fuzz) needs and is missing. As root, with DEPS=1 or with CI=true
# it installs that with apt; otherwise it prints the one line to type, or the list for other distributions, and fails.
set -eu

missing=""
need() { # need PACKAGE: remembers a Debian package
    case " $missing " in *" $1 "*) ;; *) missing="$missing $1" ;; esac
}
have() {
    command -v "$1" >/dev/null 2>&1
}
command_from() { # command_from COMMAND PACKAGE
    have "$1" || need "$2"
}
module_from() { # module_from PKG-CONFIG-MODULE PACKAGE
    { have pkg-config && pkg-config --exists "$1"; } || need "$2"
}
file_from() { # file_from PATH PACKAGE
    [ -e "$1" ] || need "$2"
}

group_build() {
    command_from gcc gcc
    file_from /usr/include/stdio.h libc6-dev
    command_from pkg-config pkg-config
    command_from meson meson
    command_from ninja ninja-build
    command_from python3 python3
    command_from xz xz-utils
    command_from zstd zstd
    command_from git git
    command_from clang-19 clang-19
    command_from ld.lld-19 lld-19
    module_from libevent libevent-dev
    module_from openssl libssl-dev
    module_from jansson libjansson-dev
    module_from libpcre2-8 libpcre2-dev
    module_from libutf8proc libutf8proc-dev
    module_from liburing liburing-dev
    module_from libxxhash libxxhash-dev
    module_from libzstd libzstd-dev
    module_from cmocka libcmocka-dev
}

group_check() {
    /usr/bin/python3 -c 'import jinja2' 2>/dev/null || need python3-jinja2 # the package is that Python's
    file_from /etc/OpenCL/vendors/pocl.icd pocl-opencl-icd
    { ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | grep -q 'libOpenCL\.so\.1' || need ocl-icd-libopencl1
    file_from /usr/include/hip/hip_runtime_api.h libamdhip64-dev
    command_from openssl openssl
    python3 -c 'import ensurepip' 2>/dev/null || need python3-venv
    command_from chromium chromium
    command_from chromedriver chromium-driver
    [ -n "$(fc-list 2>/dev/null)" ] || need fonts-dejavu-core
}

group_lint() {
    command_from clang-format clang-format
    command_from clang-tidy clang-tidy
    command_from cppcheck cppcheck
}

group_fuzz() {
    command_from clang-19 clang-19
    [ -n "$(ls /usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.fuzzer-*.a 2>/dev/null)" ] || need libclang-rt-19-dev
}

for group in "$@"; do
    "group_$group"
done
missing=${missing# }
[ -n "$missing" ] || exit 0

if ! have apt-get; then
    echo "missing (names as in Debian 12; install what your distribution calls them): $missing" >&2
    exit 1
fi
install="apt-get install -y --no-install-recommends $missing"
root=$(id -u)
if [ "$root" != 0 ]; then
    if [ "${DEPS:-}" != 1 ] && [ "${CI:-}" != true ]; then
        echo "missing packages; to install them: sudo apt-get update && sudo $install" >&2
        exit 1
    fi
    sudo=sudo
fi
echo "installing: $missing" >&2
export DEBIAN_FRONTEND=noninteractive
${sudo:-} apt-get update -q
# shellcheck disable=SC2086  # a list of words
${sudo:-} env DEBIAN_FRONTEND=noninteractive $install
