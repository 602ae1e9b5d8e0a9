#!/bin/bash
# The ABI gate: any difference of the public types from the committed baseline (abi/baseline.abi) fails, and the plugin
# itself must have exactly the types that the headers say.
# Usage: tests/abi/gate.sh FOLDER PLUGIN.so   (a plugin with debug information; FOLDER for what is made here)
#        tests/abi/gate.sh FOLDER PLUGIN.so --update   writes the baseline anew: a change of the ABI, said in its commit
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$1
plugin=$(realpath "$2")
mkdir -p "$work"
work=$(realpath "$work")
cd "$work"

fail() {
    echo "ABI gate: $*" >&2
    exit 1
}

dump() { # library
    abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed --type-id-style hash \
        --headers-dir "$root/abi" --drop-private-types "$1"
}

surface() { # name flags...
    local name=$1
    shift
    (cd "$root/tests/abi" && gcc -std=c11 -g -O0 -shared -fPIC -I ../../abi "$@" -o "$work/$name.so" surface.c)
    dump "$name.so" > "$name.abi"
}

surface all -DWITH_EXTENSIONS
surface v1
dump "$plugin" > plugin.abi

# A dump that lost its debug information compares equal to anything: each must hold the tables, whole.
for name in all v1 plugin; do
    grep -q "class-decl name='rssm_api' size-in-bits" $name.abi || fail "$name.abi does not contain the table"
done
for table in fault slots verify conv; do
    grep -q "class-decl name='rssm_${table}_api' size-in-bits" all.abi || fail "all.abi lacks the table of $table"
done

if [ "${3:-}" = --update ]; then
    cp all.abi "$root/abi/baseline.abi"
    echo "abi/baseline.abi written"
    exit 0
fi
abidiff --no-show-locs "$root/abi/baseline.abi" all.abi || fail "the headers differ from abi/baseline.abi"
abidiff --no-show-locs v1.abi plugin.abi || fail "the plugin's types differ from the headers'"

# The gate itself: a field put into the middle, or one of another width, must be found. (Constants belong to no type here:
# tests/unit/abi_layout.c freezes them, and every size and offset once more.)
for change in 's/int32_t tp_size;/int32_t tp_size, surprise;/' 's/int32_t device_type;/uint32_t device_type;/'; do
    rm -rf changed && mkdir changed && cp "$root"/abi/*.h changed/
    sed -i "$change" changed/rssm_model.h
    gcc -std=c11 -g -O0 -shared -fPIC -I changed -DWITH_EXTENSIONS -o changed.so "$root/tests/abi/surface.c"
    abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed --type-id-style hash --headers-dir changed \
        --drop-private-types changed.so > changed.abi
    ! abidiff --no-show-locs "$root/abi/baseline.abi" changed.abi > /dev/null || fail "'$change' went unnoticed"
done
echo "ABI gate: no difference"
