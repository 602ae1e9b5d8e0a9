#!/bin/bash
# The tests that need a GPU, from the binaries of a build with CUDA ($RSSM_BUILD, default build-cuda); they need nothing
# else of the machine but its driver. Ends with a line `N passed, N failed`; each part takes less than 9 minutes.
# Usage: tests/gpu.sh [test|sanitize|bench|judge|soak|two] [log folder]
# soak serves random requests for $RSSM_SOAK_SECONDS (480) and watches its memory and the device's.
# two needs two GPUs of one model; its ranks need a python3 ($RSSM_PYTHON) with PyTorch and NCCL, else they are left out by name.
# $RSSM_CASES = first:last takes fewer random cases, $RSSM_LIMIT gives each program fewer seconds than 500, $RSSM_SANITIZERS
# names some of memcheck, racecheck, initcheck and synccheck.
set -u
cd "$(dirname "$0")/.."
part=${1:-test}
logs=${2:-$(mktemp -d)}
build=$(realpath "${RSSM_BUILD:-build-cuda}")
mkdir -p "$logs" && rm -f "$logs"/*.rc

export RSSM_PLUGIN=$build/tests/mirror.so RSSM_MIRRORED=$build/plugin/replayssm.so
export RSSM_SOURCE_ROOT=$PWD CK_FORK=no PATH=$PATH:/usr/local/cuda/bin
for folder in /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib; do
    [ -d "$folder" ] && export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder # libcudart, for one test
done

note() { printf '%s\n' "== $*"; }

# When this script is killed its programs are too: each has a process group of its own (timeout's), and ends with the shell that
# waits for it.
trap 'kill $(jobs -p) 2> /dev/null; exit 143' TERM INT HUP
with_me=(setpriv --pdeathsig TERM)
"${with_me[@]}" true 2> /dev/null || with_me=() # an old util-linux

# Runs one program into its log; its outcome goes to a file beside it. For the background.
one() { # name command...
    local name=$1 begin=$SECONDS
    shift
    "${with_me[@]}" timeout "${RSSM_LIMIT:-500}" "$@" > "$logs/$name.log" 2>&1 &
    wait $!
    echo "$? $((SECONDS - begin))" > "$logs/$name.rc"
}

# Several of them after each other.
in_turn() { # "name command..." ...
    local job
    for job in "$@"; do
        # shellcheck disable=SC2086
        one $job
    done
}

# A part's programs are over: sums up what they said. A program that says nothing is a check of its own.
passed=0
failed=0
summarise() {
    local rc name code took good bad
    for rc in "$logs"/*.rc; do
        name=$(basename "$rc" .rc)
        read -r code took < "$rc"
        read -r good bad < <(awk '
            match($0, /Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+/) {
                split(substr($0, RSTART, RLENGTH), f, /[^0-9]+/); bad += f[3] + f[4]; good += f[2] - f[3] - f[4] }
            /^[0-9]+ passed, [0-9]+ failed/ { good += $1; bad += $3 }
            END { print good + 0, bad + 0 }' "$logs/$name.log")
        [ "$code" != 0 ] && [ "$bad" = 0 ] && bad=1
        [ "$code" = 0 ] && [ "$good" = 0 ] && good=1
        passed=$((passed + good))
        failed=$((failed + bad))
        note "$name: $good passed, $bad failed, $took s"
        [ "$bad" = 0 ] || grep -v "^Running suite" "$logs/$name.log" | tail -n 12 | cut -c1-240
    done
}

# The main job on real configs: KDA, GDN and Mamba-2.
model_runs() { # config
    local run="$build/examples/replayssm-run configs/$1.json --device cuda --tp 2 --batch 16 --steps 24 --threads 3 --check"
    in_turn "run-$1-L1 $run --ring 1" "run-$1-L5 $run --ring 5" "run-$1-L16 $run --ring 16" \
        "run-$1-bf16-state $run --state bfloat16 --ring 16" "run-$1-records ${run/--batch 16/--batch 24} --state bfloat16 --ring 16" "run-$1-trajectory $run --io float32 --oracle trajectory"
}

# Random histories of slots, in part i of n; engine 1 is the GPU.
history_part() { # i n
    local cases=${RSSM_HISTORIES:-400}
    one "history-$1" env RSSM_HISTORY_ENGINE=1 RSSM_HISTORY=$((cases * $1 / $2))-$((cases * ($1 + 1) / $2)):60 \
        "$build/tests/test_history"
}

# A server whose every request is checked, with graphs and without.
server_runs() { # config options...
    local name=$1 sim="$build/examples/replayssm-server-sim --device cuda --config configs/$1.json"
    shift
    in_turn "server-$name $sim --requests 1000 --batch 32 $*" \
        "server-$name-exact $sim --requests 300 --ring-dtype float32 --no-graphs --fault-rate 100 $*"
}

# Some of test_decode's tests, after each other.
decode_part() { # test...
    local name
    for name in "$@"; do CK_RUN_CASE=$name one "decode-$name" "$build/tests/test_decode"; done
}

part_test() {
    local workers=$(($(nproc) > 12 ? 8 : 2)) i config
    {
        one large "$build/tests/test_gpu" --only large
        decode_part b43_offsets_beyond_31_bits # 77 GB: not beside the other one
    } &
    decode_part bar_S_of_every_dtype &
    decode_part bar_S_of_real_sizes L_1_is_the_plain_recurrence L_1_without_a_ring_refuses_records bar_D &
    decode_part forms_give_the_same_bits threads_give_the_same_bits bar_T drift_of_16_bit_states &
    decode_part b31_padding_rows b46_an_append_overwrites_no_live_row b56_forced_flush_at_write_pos_3 \
        b49_reset_after_a_tenant_of_nan duplicate_slots_harm_nobody_else b15_saturation_and_the_fault_word \
        the_state_does_not_depend_on_when_it_is_flushed b70_flushes_are_counted &
    one slots "$build/tests/test_gpu" --small --only slots & # small: its bandwidth is measured by hand, alone
    in_turn "streams $build/tests/test_gpu --only streams" "formulas $build/tests/test_formulas" \
        "cursor $build/tests/test_cursor" &
    for ((i = 0; i < workers; i++)); do
        in_turn "kernels-$i $build/tests/test_gpu --only kernels --part $i/$workers" \
            "random-$i $build/tests/test_gpu --only random --part $i/$workers ${RSSM_CASES:+--cases $RSSM_CASES}" \
            "verify-$i $build/tests/test_gpu --only verify --part $i/$workers" &
        history_part $i $workers &
    done
    server_runs qwen3.5-35b-a3b &
    server_runs kimi-linear-48b-a3b &
    server_runs nemotron-3-nano-30b-a3b --layers 10 --drafts 7 --ring 8 &
    for config in kimi-linear-48b-a3b qwen3.5-35b-a3b nemotron-3-nano-30b-a3b; do
        model_runs $config &
    done
    in_turn "hosts-qwen $build/tests/docs/check_hosts $build/plugin/replayssm.so configs/qwen3.5-35b-a3b.json 2 cuda" \
        "hosts-kimi $build/tests/docs/check_hosts $build/plugin/replayssm.so configs/kimi-linear-48b-a3b.json 2 cuda" \
        "hosts-nemotron $build/tests/docs/check_hosts $build/plugin/replayssm.so configs/nemotron-3-nano-30b-a3b.json 3 cuda" &
    wait
}

# A sanitizer's own errors end the program with code 9. racecheck sees shared memory only. synccheck has to be told how
# many of the kernels' mbarriers are alive at once, for whole grids.
sanitized() { # tool args...
    local tool=$1 part parts=$(($(nproc) > 12 ? 4 : 2))
    [ "$tool" = synccheck ] && parts=$((parts * 2)) # the slowest
    shift
    for ((part = 0; part < parts; part++)); do
        one "$tool-$part" compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 "$@" \
            "$build/tests/test_gpu" --small --part $part/$parts &
    done
    RSSM_HISTORY_ENGINE=1 RSSM_HISTORY=0-12:12 one "$tool-history" compute-sanitizer --tool "$tool" --error-exitcode 9 \
        --print-limit 20 "$@" "$build/tests/test_history" &
}

part_sanitize() {
    local tool
    for tool in ${RSSM_SANITIZERS:-memcheck racecheck initcheck synccheck}; do
        case $tool in
        memcheck) RSSM_MIRROR_EXACT=1 sanitized memcheck --leak-check full ;;
        synccheck) sanitized synccheck --num-cuda-barriers 65536 ;;
        *) sanitized "$tool" ;;
        esac
    done
    wait
}

# Figures into bench.json, the table into bench.log; what does not depend on the machine is judged.
# $RSSM_BENCH takes options, such as --quick.
part_bench() {
    # shellcheck disable=SC2016
    one bench sh -c '"$0" --device cuda --seconds 430 --json $RSSM_BENCH > "$1"' "$build/examples/replayssm-bench" "$logs/bench.json"
    one bench-check python3 tests/bench/check.py "$logs/bench.json"
    local what
    for what in slots conv; do # 20 s or less each
        # shellcheck disable=SC2016
        one bench-$what sh -c '"$0" --device cuda --$2 --json > "$1"' "$build/examples/replayssm-bench" "$logs/bench-$what.json" "$what"
        one bench-check-$what python3 tests/bench/check.py "$logs/bench-$what.json"
    done
}

# The judge with CUDA instances; its cases' memory is registered with the driver (tests/conform/device.c). $RSSM_JUDGE takes
# more options, such as --skip history.
part_judge() {
    # shellcheck disable=SC2086
    one judge "$build/tests/replayssm-conform" "$RSSM_MIRRORED" --device cuda --timeout 120 ${RSSM_JUDGE:-}
}

# A server under random bad calls; three checks: no wrong request, host memory flat, device memory flat.
part_soak() {
    local seconds=${RSSM_SOAK_SECONDS:-480}
    RSSM_BUILD=$build RSSM_LIMIT=$((seconds + 50)) one soak tests/soak.sh "$seconds" --config configs/qwen3.5-35b-a3b.json --device cuda
    tail -n 5 "$logs/soak.log"
}

# Two devices in one process; two tensor-parallel ranks over NCCL: equal to one rank, and how much faster.
# One program at a time: they measure.
part_two() {
    local python=${RSSM_PYTHON:-python3} name config
    export REPLAYSSM_PLUGIN=$build/plugin/replayssm.so NCCL_NVLS_ENABLE=0 OMP_NUM_THREADS=1
    one two-devices "$build/tests/test_gpu" --only two
    grep '^skipped' "$logs/two-devices.log"
    if ! "$python" -c 'import sys, torch; sys.exit(torch.cuda.device_count() < 2 or not torch.distributed.is_nccl_available())'; then
        note "skipped: ranks over NCCL ($python has no PyTorch with NCCL and two GPUs)"
        return
    fi
    local ranks="$python -m torch.distributed.run --standalone --nproc-per-node 2 examples/tp/tp_torch.py"
    for config in kimi-linear-48b-a3b qwen3.5-35b-a3b nemotron-3-nano-30b-a3b; do
        name=${config%%-*}
        in_turn "ranks-equal-$name $ranks configs/$config.json --device cuda --batch 16" \
            "ranks-equal-fp32-$name $ranks configs/$config.json --device cuda --batch 16 --io float32" \
            "ranks-time-$name $ranks configs/$config.json --device cuda --time --batch 256 --fewer 1.8 --json"
    done
    grep -hE '^(tp 1|rank [0-9]|\{)|us per layer-step' "$logs"/ranks-time-*.log
}

case $part in
test | sanitize | bench | judge | soak | two) "part_$part" ;;
*)
    echo "usage: tests/gpu.sh [test|sanitize|bench|judge|soak|two] [log folder]" >&2
    exit 64
    ;;
esac
summarise
echo "$passed passed, $failed failed"
[ $failed = 0 ]
