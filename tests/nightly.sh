#!/bin/bash
# What takes too long for every commit; run by hand. Needs a build in build/ (tests/run.sh gcc makes it). Ends with a line
# `N passed, N failed`.
# Usage: tests/nightly.sh [part ...]: valgrind long pack fuzz soak (default: all of them, about 7 hours). $RSSM_FUZZ_SECONDS [1800] for each
# fuzzer, $RSSM_SOAK_SECONDS [3600].
set -u
cd "$(dirname "$0")/.."
export RSSM_PLUGIN=$PWD/build/plugin/replayssm.so RSSM_SOURCE_ROOT=$PWD RSSM_MODELS=${RSSM_MODELS:-$PWD/../shared/models}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0
failed=0

check() { # name command...
    local name=$1 begin=$SECONDS
    shift
    if "$@" > "$log" 2>&1; then
        passed=$((passed + 1))
        printf '%-60s ok     %5d s   %s\n' "$name" $((SECONDS - begin)) "$(grep -E 'Checks:|passed,' "$log" | tail -n 1)"
        grep -E '^==.*executions|wrong requests|bad calls|resident:' "$log"
    else
        failed=$((failed + 1))
        printf '%-60s FAILED %5d s\n' "$name" $((SECONDS - begin))
        tail -n 30 "$log"
    fi
}

# valgrind has no AVX-512: the plugin sees a machine without it and takes AVX2.
grind() { RSSM_SLOW=1 CK_FORK=no valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite --show-leak-kinds=definite "$@"; }

part_valgrind() {
    check "valgrind: config reader" grind build/tests/test_config
    check "valgrind: pool" grind build/tests/test_pool
    check "valgrind: formulas" grind build/tests/test_formulas
    check "valgrind: cursor" grind build/tests/test_cursor
    check "valgrind: kernels" grind build/tests/test_kernels
    check "valgrind: replayssm-plan" grind build/examples/replayssm-plan configs/kimi-k3.json --tp 8 --json
    for config in kimi-linear-48b-a3b qwen3.5-35b-a3b nemotron-3-nano-30b-a3b; do
        check "valgrind: replayssm-run $config" grind build/examples/replayssm-run configs/$config.json --tp 8 --batch 2 --steps 6 --ring 4 --check
    done
}

part_long() {
    check "kernels, long" build/tests/test_kernels --long
    for seed in 1 2 3 4 5 6 7 8; do
        check "kernels, seed $seed" build/tests/test_kernels --seed $seed
    done
    check "histories: 400000 operations and more" env RSSM_HISTORY=4000:80 build/tests/test_history
    check "a server's 10000 requests" build/examples/replayssm-server-sim --layers 4 --batch 32 --requests 10000 --fault-rate 20
    check "Kimi-Linear at full size" build/examples/replayssm-run configs/kimi-linear-48b-a3b.json --batch 16 --check
    for config in configs/*.json; do
        check "drift over 64 windows: $(basename "$config")" build/examples/replayssm-run "$config" --tp 2 --batch 1 --steps 1024 --ring 16 --oracle trajectory --check
    done
}

# Builds the packages of HEAD, and installs, tests and purges them in a fresh Debian 12 (needs root and a mirror).
part_pack() { check "Debian packages, in a fresh Debian 12" tests/pack/debian.sh; }

part_fuzz() {
    for target in config call extension stream; do
        check "fuzz: $target" tests/fuzz/run.sh "${RSSM_FUZZ_SECONDS:-1800}" $target
    done
}

part_soak() { check "soak: a server under random faults" tests/soak.sh "${RSSM_SOAK_SECONDS:-3600}"; }

for part in ${*:-valgrind long pack fuzz soak}; do "part_$part"; done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
