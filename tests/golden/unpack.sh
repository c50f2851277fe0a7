#!/bin/sh
# unpack.sh ARCHIVE DIR STAMP: replaces DIR by the archive's content.
set -eu
rm -rf "$2" "$2.part"
mkdir -p "$2.part"
xz -dc "$1" | tar -C "$2.part" -xf -
mv "$2.part" "$2"
: >"$3"
