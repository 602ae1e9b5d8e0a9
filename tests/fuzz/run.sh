#!/bin/bash
# Builds the fuzzers and runs each for some seconds, from the configs and from what earlier runs have found. Ends with a line
# `N passed, N failed`: a target passes when it found nothing.
# Usage: tests/fuzz/run.sh [seconds [target ...]]
set -u
cd "$(dirname "$0")/../.."
seconds=${1:-20}
shift || true
targets=${*:-config call stream extension}
build=build-fuzz
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:malloc_limit_mb=1024 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
[ -f $build/build.ninja ] || CC=clang meson setup $build -Dfuzz=true -Dcuda=disabled -Dbuildtype=debugoptimized \
    -Db_sanitize=address,undefined -Db_lundef=false -Dc_args=-fsanitize=fuzzer-no-link > /dev/null || exit 1
programs=()
for target in $targets; do programs+=("tests/fuzz_$target"); done
ninja -C $build plugin/replayssm.so "${programs[@]}" > $build/fuzz-build.log || { tail -n 20 $build/fuzz-build.log; exit 1; }

passed=0
failed=0
for target in $targets; do
    corpus=$build/corpus-$target
    mkdir -p "$corpus"
    case $target in
    config) cp configs/*.json "$corpus/" ; length=20000 ;;
    *) length=400 ;;
    esac
    [ "$target" != extension ] || for call in 0 1 2 3 4 5 6 7 8 9 a; do # each call of each family, bent once
        for family in 0 1 2; do printf "\\x0$family\\x0$call\\x05\\x03\\x01\\x0b\\x02" > "$corpus/$call-$family"; done
    done
    [ ! -d tests/fuzz/found/$target ] || cp tests/fuzz/found/$target/* "$corpus/" # what was a finding once
    log=$build/fuzz-$target.log
    RSSM_PLUGIN=$PWD/$build/plugin/replayssm.so $build/tests/fuzz_$target -max_total_time="$seconds" -max_len=$length \
        -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 -artifact_prefix=$build/fuzz-$target- "$corpus" > "$log" 2>&1
    rc=$?
    echo "== $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") executions in $seconds s, $(ls "$corpus" | wc -l) seeds"
    if [ $rc = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        tail -n 40 "$log"
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
