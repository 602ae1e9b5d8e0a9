#!/bin/bash
# The whole test suite, as CI runs it: installs what is missing, builds with gcc, clang and the sanitizers, runs every
# test, and ends with a line `N passed, N failed`. A stage that overruns its budget (seconds) is a failure.
# Usage: tests/run.sh [stage ...]   (default: all of them; `tests/run.sh list` names them)
set -u
cd "$(dirname "$0")/.."

stages="install format lint gcc tp pack clang abi asan tsan cuda coverage fuzz readme"
if [ "${1:-}" = list ]; then
    echo "$stages"
    exit 0
fi
[ $# -gt 0 ] && stages="$*"

passed=0
failed=0
export RSSM_MODELS=${RSSM_MODELS:-$PWD/../shared/models}

note() { printf '%s\n' "== $*"; }

# One thing that holds or not.
check() { # name command...
    local name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        note "FAILED: $name"
    fi
}

# Adds up what the test programs of a build said: Check's summaries, and `N passed, N failed` of the others.
count_log() { # file
    local log=$1 good bad
    [ -f "$log" ] || return 0
    read -r good bad < <(awk '
        match($0, /Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+/) {
            split(substr($0, RSTART, RLENGTH), f, /[^0-9]+/); bad += f[3] + f[4]; good += f[2] - f[3] - f[4] }
        /^[0-9]+ passed, [0-9]+ failed/ { good += $1; bad += $3 }
        END { print good + 0, bad + 0 }' "$log")
    passed=$((passed + good))
    failed=$((failed + bad))
    note "$good checks passed, $bad failed"
}

# Configures, builds and tests one variant. A failing test program prints its log. A suite with a minus is left out.
variant() { # folder suites meson-args...
    local dir=$1 suites=$2
    shift 2
    [ -f "$dir/build.ninja" ] || meson setup "$dir" --fatal-meson-warnings "$@" || return 1
    meson compile -C "$dir" || return 1
    local args=() suite
    for suite in $suites; do
        case $suite in -*) args+=(--no-suite "${suite#-}") ;; *) args+=(--suite "$suite") ;; esac
    done
    rm -f "$dir/meson-logs/testlog.txt"
    meson test -C "$dir" --no-rebuild --print-errorlogs "${args[@]}"
    local rc=$?
    count_log "$dir/meson-logs/testlog.txt"
    return $rc
}

stage_install() { .ci/install; }

stage_format() {
    git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror
}

stage_gcc() {
    CC=gcc variant build "" --werror -Dcuda=disabled || return 1
    check "one exported symbol" tests/symbols.sh build/plugin/replayssm.so
}

stage_clang() { CC=clang variant build-clang "" --werror -Dcuda=disabled; }

# (Not with detect_stack_use_after_return: gcc 12 then faults on a 64-byte aligned frame of the AVX-512 kernels. use_tls=0: the leak
# checker now and then trips over the thread block of a thread that was just joined; what only such a block points to would
# then count as a leak, so nothing is overlooked; tests/lsan.txt names the one that does.)
stage_asan() {
    CC=gcc ASAN_OPTIONS=detect_leaks=1 LSAN_OPTIONS=use_tls=0:suppressions=$PWD/tests/lsan.txt UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
        variant build-asan "" --werror -Dcuda=disabled -Db_sanitize=address,undefined -Db_lundef=false \
        -Dbuildtype=debugoptimized
}

stage_tsan() {
    CC=clang TSAN_OPTIONS=halt_on_error=1 variant build-tsan "threads" --werror -Dcuda=disabled -Db_sanitize=thread \
        -Db_lundef=false -Dbuildtype=debugoptimized
}

# The CUDA backend compiles where there is nvcc, and its host side runs against a driver made for tests; the kernels run in
# tests/gpu.sh, on a GPU.
stage_cuda() {
    if ! command -v nvcc > /dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
        note "no nvcc: not compiled"
        return 0
    fi
    variant build-cuda "cuda" --werror -Dcuda=enabled || return 1
    check "one exported symbol with CUDA" tests/symbols.sh build-cuda/plugin/replayssm.so
    check "kernels wait for those before them" python3 tests/gpu/kernels_wait.py build-cuda/plugin/cuda/*.fatbin
}

# The ABI's types against the committed baseline, and hosts that were compiled with older headers.
stage_abi() {
    local dir=build-abi
    [ -f $dir/build.ninja ] || CC=gcc meson setup $dir --fatal-meson-warnings --werror -Dcuda=disabled \
        -Dbuildtype=debugoptimized -Dtests=false > /dev/null || return 1
    ninja -C $dir plugin/replayssm.so || return 1
    check "ABI gate" tests/abi/gate.sh $dir/gate $dir/plugin/replayssm.so
    check "hosts of older headers" tests/abi/hosts.sh $dir/hosts $dir/plugin/replayssm.so
}

# Tensor-parallel ranks under MPI against one rank; under torchrun too where $RSSM_TORCH_PYTHON names a Python with PyTorch.
stage_tp() {
    tests/tp/run.sh build "${RSSM_TORCH_PYTHON:-}" | tee build-ranks.log
    local rc=${PIPESTATUS[0]}
    count_log build-ranks.log
    rm -f build-ranks.log
    return "$rc"
}

# What leaves the house: the installed files with a host out of tree, and the release tarball of HEAD.
stage_pack() {
    tests/pack/out_of_tree.sh "$PWD" build | tee build-pack.log
    local rc=${PIPESTATUS[0]}
    count_log build-pack.log
    rm -f build-pack.log
    check "release tarball builds" quietly tests/pack/dist.sh
    return "$rc"
}

# Each fuzzer for some seconds: enough to find what a change has just broken. tests/nightly.sh runs them long.
stage_fuzz() {
    tests/fuzz/run.sh 20 | tee build-fuzz.log
    local rc=${PIPESTATUS[0]}
    count_log build-fuzz.log
    rm -f build-fuzz.log
    return "$rc"
}

# One file per process: clang-tidy 14 mixes up the va_lists of several.
stage_lint() {
    [ -f build-clang/build.ninja ] || CC=clang meson setup build-clang --fatal-meson-warnings --werror -Dcuda=disabled > /dev/null || return 1
    ninja -C build-clang plugin/revision.h > /dev/null || return 1
    check "cppcheck" cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr \
        --suppressions-list=tests/cppcheck.txt --error-exitcode=1 -j 2 -Iabi -Iplugin -D__x86_64__ -D__linux__ \
        -D__BYTE_ORDER__=1 -D__ORDER_LITTLE_ENDIAN__=1 plugin/core plugin/cpu plugin/cuda examples
    git ls-files 'plugin/core/*.c' 'plugin/cpu/*.c' | grep -v neon > build-clang/linted.txt
    check "clang-tidy" xargs -a build-clang/linted.txt -P 2 -n 1 clang-tidy -p build-clang --quiet
}

# Lines and branches of the host's code that the tests reach; what they do not reach is listed in docs/testing.md. (SANITIZED: the
# tests of the .so as a file skip what an instrumented one cannot hold.)
stage_coverage() {
    local dir=build-coverage
    find $dir -name '*.gcda' -delete 2> /dev/null
    CC=gcc variant $dir "abi config decode kernels -judge -pack" -Dcuda=disabled -Ddebug=true -Doptimization=1 \
        -Db_coverage=true -Dc_args=-DSANITIZED=1 || return 1
    check "95 % of lines, 85 % of branches" gcovr -r . --object-directory $dir --filter 'plugin/(core|cpu)/' \
        --exclude-unreachable-branches --print-summary --fail-under-line 95 --fail-under-branch 85 --output $dir/lines.txt
    gcovr -r . --object-directory $dir --filter 'plugin/(core|cpu)/' --exclude-unreachable-branches --branches \
        --output $dir/branches.txt
}

# What a program printed matters only when it fails.
quietly() {
    local out
    out=$("$@" 2>&1) || { printf '%s\n' "$out"; return 1; }
}

# What the README promises: the main job on a real config, in three families.
stage_readme() {
    local run=build/examples/replayssm-run config
    for config in kimi-linear-48b-a3b qwen3.5-35b-a3b granite-4.0-h-small; do
        for ring in 1 2 5 16; do
            check "$config L=$ring" quietly $run configs/$config.json --tp 4 --batch 4 --steps 40 --ring $ring --check
        done
        check "$config trajectory" quietly $run configs/$config.json --tp 4 --batch 4 --steps 40 --io float32 --oracle trajectory --check
        check "$config bf16 state" quietly $run configs/$config.json --tp 4 --batch 4 --steps 40 --state bfloat16 --check
    done
    check "minimal host" quietly build/examples/minimal build/plugin/replayssm.so configs/qwen3.5-35b-a3b.json
}

budget_install=300 budget_format=30 budget_lint=420 budget_abi=90 budget_coverage=540 budget_fuzz=240 budget_tp=180 budget_pack=300 budget_gcc=420 budget_clang=420 budget_asan=600 budget_tsan=300 budget_cuda=900 budget_readme=300
table=""
total=0
for stage in $stages; do
    budget_name=budget_$stage
    budget=${!budget_name:-600}
    note "stage $stage (budget $budget s)"
    begin=$SECONDS
    check "stage $stage" "stage_$stage"
    took=$((SECONDS - begin))
    total=$((total + took))
    [ $took -le "$budget" ] || check "stage $stage within its budget of $budget s (took $took)" false
    table+=$(printf '%-10s %5d s of %5d' "$stage" $took "$budget")$'\n'
done
note "stages"
printf '%s' "$table"
printf '%-10s %5d s of %5d\n' all $total 2100
echo "$passed passed, $failed failed"
[ $failed = 0 ]
