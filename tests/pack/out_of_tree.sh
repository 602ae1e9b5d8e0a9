#!/bin/sh
# Installs a build into a folder of its own, builds the smallest host against that alone, as pkg-config says, runs it and
# the tools there, uninstalls, and looks for what was left. Ends with a line `N passed, N failed`.
# Usage: out_of_tree.sh SOURCE BUILD   ($CC)
set -u
source=$(realpath "$1") build=$(realpath "$2")
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
passed=0 failed=0

check() { # name command...
    name=$1
    shift
    if "$@" > "$stage/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $name"
        cat "$stage/log"
    fi
}

# As a user calls it, but for the prefix, which is below the stage.
package() {
    PKG_CONFIG_PATH=$(dirname "$pc") PKG_CONFIG_LIBDIR='' pkg-config --define-variable=prefix="$root$prefix" "$@" replayssm
}

each_has_a_page() { # folder of programs, folder of pages
    for program in "$1"/replayssm-*; do [ -s "$2/$(basename "$program").1" ] || { echo "$program"; return 1; }; done
}

root=$stage/root
prefix=$(meson introspect --buildoptions "$build" | python3 -c 'import json, sys
print(next(o["value"] for o in json.load(sys.stdin) if o["name"] == "prefix"))')
check "install" env DESTDIR="$root" meson install -C "$build" --no-rebuild --quiet
pc=$(find "$root" -name replayssm.pc)
check "one pkg-config file" test -f "$pc"
check "it has the version" test "$(package --modversion)" = "$(meson introspect --projectinfo "$build" | sed 's/.*"version": "\([^"]*\)".*/\1/')"
plugin=$(package --variable=plugin)
check "the plugin is where it says" test -f "$plugin"
check "a host links nothing of ours" test -z "$(package --libs | tr -d ' ')"

# Of the source tree, the host alone: the headers have to be the installed ones.
cp "$source/examples/minimal.c" "$stage/host.c"
# shellcheck disable=SC2046,SC2086
check "a host compiles" ${CC:-cc} -std=c11 -D_GNU_SOURCE $(package --cflags) "$stage/host.c" -ldl -o "$stage/host"
config=$root$prefix/share/replayssm/configs/qwen3.5-35b-a3b.json
check "it runs" "$stage/host" "$plugin" "$config"
check "it prints five tokens" test "$(grep -c '^gdn token' "$stage/log")" = 5

cd "$stage" || exit 1
check "replayssm-run finds the plugin" "$root$prefix/bin/replayssm-run" "$config" --tp 4 --batch 2 --steps 4 --check
check "each program has a man page" each_has_a_page "$root$prefix/bin" "$root$prefix/share/man/man1"

check "uninstall" env DESTDIR="$root" ninja -C "$build" uninstall
check "nothing is left" test ! -e "$root"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
