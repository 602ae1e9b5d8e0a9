#!/bin/bash
# Hosts of other minors. A host that was compiled with the headers of a released minor (tests/abi/1.0: frozen, never edited
# again once 1.0 is tagged) must run on today's plugin, and say the same as one of today's headers. The other direction,
# today's host on a released plugin, has nothing to run on before the first release; what that host meets, shorter
# structs, is tested as replayssm-conform's boundary/in structs and out structs.
# Usage: tests/abi/hosts.sh FOLDER PLUGIN.so   (FOLDER for what is built here)
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$1
plugin=$(realpath "$2")
mkdir -p "$work"

fail() {
    echo "hosts: $*" >&2
    exit 1
}

build() { # name headers
    ${CC:-gcc} -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Werror -I "$2" "$root/tests/abi/1.0/host.c" -ldl -o "$work/$1"
}

ran=0
for config in kimi-linear-48b-a3b qwen3.5-35b-a3b nemotron-3-nano-30b-a3b; do
    build new "$root/abi"
    "$work/new" "$plugin" "$root/configs/$config.json" > "$work/new.txt" || fail "today's host fails on $config"
    grep -q "token 4: out = " "$work/new.txt" || fail "today's host said nothing on $config"
    for released in "$root"/tests/abi/[0-9]*; do
        minor=$(basename "$released")
        build old "$released"
        "$work/old" "$plugin" "$root/configs/$config.json" > "$work/old.txt" || fail "a host of $minor fails on $config"
        cmp "$work/old.txt" "$work/new.txt" || fail "a host of $minor and one of today get other numbers on $config"
        ran=$((ran + 1))
    done
done
echo "hosts: $ran runs of older hosts; no released plugin yet for today's host to run on"
