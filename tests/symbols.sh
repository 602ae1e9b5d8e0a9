#!/bin/sh
# A plugin exports exactly tests/symbols.txt and needs nothing but libc's own libraries.
set -eu
so=$1
here=$(dirname "$0")
nm -D --defined-only "$so" | awk '$2 != "A" && $2 != "V" { print $3 }' | diff - "$here/symbols.txt"
bad=$(readelf -d "$so" | awk '/NEEDED/ { gsub(/[\[\]]/, "", $5); print $5 }' |
    grep -vxE 'libc\.so\.6|libm\.so\.6|libpthread\.so\.0|libdl\.so\.2|ld-linux[-a-z0-9_]*\.so\.[0-9]' || true)
if [ -n "$bad" ]; then
    echo "$so needs more than libc: $bad"
    exit 1
fi
