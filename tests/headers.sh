#!/bin/sh
# Each public header alone, as C11 and as C++17, pedantic and without a warning; and all of them in either order.
#   tests/headers.sh FOLDER_OF_HEADERS [CC [CXX]]
# Exit 77 (skipped) when there is no C++ compiler; the C half has run then.
set -u
abi=$1
cc=${2:-${CC:-cc}}
cxx=${3:-${CXX:-c++}}
warn="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef -Werror"
passed=0
failed=0

# compile LANGUAGE STANDARD COMPILER HEADER...
compile() {
    language=$1 standard=$2 compiler=$3
    shift 3
    text=$(for header in "$@"; do echo "#include \"$header\""; done; echo "extern int rssm_headers_test;")
    # shellcheck disable=SC2086
    if echo "$text" | $compiler -x "$language" -std="$standard" $warn -I"$abi" -fsyntax-only -; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $* as $standard"
    fi
}

names=$(cd "$abi" && ls ./*.h | sed 's|^\./||')
reversed=$(echo "$names" | sort -r)
for name in $names; do
    compile c c11 "$cc" "$name"
done
# shellcheck disable=SC2086
compile c c11 "$cc" $names
# shellcheck disable=SC2086
compile c c11 "$cc" $reversed
cxx_there=yes
if command -v "${cxx%% *}" >/dev/null 2>&1; then
    for name in $names; do
        compile c++ c++17 "$cxx" "$name"
    done
    # shellcheck disable=SC2086
    compile c++ c++17 "$cxx" $names
    # shellcheck disable=SC2086
    compile c++ c++17 "$cxx" $reversed
else
    cxx_there=no
    echo "no C++ compiler \"$cxx\": only C was checked"
fi
echo "Checks: $((passed + failed)), Failures: $failed, Errors: 0"
[ "$passed" -gt 0 ] && [ "$failed" -eq 0 ] || exit 1
[ "$cxx_there" = yes ] || exit 77
