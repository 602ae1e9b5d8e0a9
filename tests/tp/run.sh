#!/bin/bash
# The tensor-parallel hosts of examples/tp: MPI ranks against one rank in every family, pipeline stages, splits that no rank
# may take, ranks that do not fit together, ranks that die or hang. Ends with a line `N passed, N failed`.
# Usage: tests/tp/run.sh BUILD [PYTHON]     PYTHON with PyTorch adds torchrun over gloo
set -u
cd "$(dirname "$0")/../.." || exit
build=$(realpath "${1:?usage: tests/tp/run.sh BUILD [PYTHON]}")
python=${2:-}
tp=$build/examples/tp/replayssm-tp
export REPLAYSSM_PLUGIN=${REPLAYSSM_PLUGIN:-$build/plugin/replayssm.so}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

passed=0
failed=0
declare -A digests=() # of all activations, by the name of a run
kimi="configs/kimi-linear-48b-a3b.json --layers 4"
qwen="configs/qwen3.5-35b-a3b.json --layers 4"
nemotron="configs/nemotron-3-nano-30b-a3b.json --layers 5"
granite="configs/granite-4.0-h-small.json --layers 2 --steps 12" # one group, on every rank

# OpenMPI: more ranks than processors, root in a container, no shells on other machines, no ptrace between ranks.
[ "$(nproc)" -ge 8 ] || export OMPI_MCA_rmaps_base_oversubscribe=1
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none \
    OMPI_MCA_plm=isolated

verdict() { # ok|FAILED name
    echo "$1 $2"
    if [ "$1" = ok ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && sed 's/^/    /' "$work/log" | tail -n 12; fi
}

# Runs a command with a time limit; its exit code must be as given, and each expression found in what it said. A program that
# the limit ends says 124 or 137.
expect() { # name code seconds expression... -- command...
    local name=$1 code=$2 seconds=$3 found=ok expressions=() expression
    shift 3
    while [ "$1" != -- ]; do
        expressions+=("$1")
        shift
    done
    shift
    timeout -k 5 "$seconds" "$@" > "$work/log" 2>&1
    local rc=$?
    [ $rc = "$code" ] || { echo "exit code $rc, not $code" >> "$work/log" && found=FAILED; }
    for expression in "${expressions[@]}"; do
        grep -qE "$expression" "$work/log" || { echo "not found: $expression" >> "$work/log" && found=FAILED; }
    done
    verdict $found "$name"
}

# Lines that match, in the last log, must be so many.
expect_lines() { # name count expression
    local count
    count=$(grep -cE "$3" "$work/log")
    if [ "$count" = "$2" ]; then verdict ok "$1"; else echo "$count lines match" >> "$work/log" && verdict FAILED "$1"; fi
}

equal() { # name ranks args...
    local name=$1 ranks=$2
    shift 2
    expect "$name" 0 60 "^heads: [1-9][0-9]* outputs compared with one rank's, 0 differ" '^equal to one rank' -- \
        mpirun -n "$ranks" "$tp" "$@"
    digests[$name]=$(sed -n 's/^activations: digest //p' "$work/log")
}

families_equal_one_rank() {
    local n
    for n in 1 2 4 8; do
        # shellcheck disable=SC2086
        {
            equal "kda, tp $n" $n $kimi
            equal "gdn, tp $n" $n $qwen
            equal "mamba2, tp $n" $n $nemotron
            [ $n = 1 ] && continue
            equal "mamba2 with a replicated group, tp $n" $n $granite
            expect_lines "... it has the group on each rank" 1 ', 1 of 1 groups;'
        }
    done
    # shellcheck disable=SC2086
    {
        equal "kda, float32 and a ring of 16, tp 4" 4 $kimi --io float32 --ring 16 --steps 40
        equal "gdn, bfloat16 state, threads, tp 2" 2 $qwen --state bfloat16 --threads 2
    }
}

# Two stages of n ranks do to the bit what one does.
two_stages() { # family n args...
    local family=$1 n=$2 one=${digests["$1, tp $2"]:-none}
    shift 2
    equal "$family, two stages of tp $n" $((2 * n)) "$@" --stages 2
    if [ "$one" = "${digests["$family, two stages of tp $n"]}" ]; then
        verdict ok "... same digest as one stage"
    else
        verdict FAILED "... same digest as one stage"
    fi
}

stages_equal_one() {
    local n
    for n in 1 2; do
        # shellcheck disable=SC2086
        {
            two_stages kda $n $kimi
            two_stages gdn $n $qwen
            two_stages mamba2 $n $nemotron
        }
    done
}

bad_splits() {
    # shellcheck disable=SC2086
    {
        expect "32 heads over 3 ranks" 2 30 'tp_size = 3 does not divide 32 key heads' '3 of 3 ranks refused' -- \
            mpirun -n 3 "$tp" $kimi
        expect_lines "... which every rank says alike" 3 '^replayssm-tp, rank [0-2]: .*tp_size = 3 does not divide 32'
        expect "128 heads of one group over 3 ranks" 2 30 'tp_size = 3' '3 of 3 ranks refused' -- mpirun -n 3 "$tp" $granite
        expect_lines "... which every rank says alike" 3 '^replayssm-tp, rank [0-2]: .*tp_size = 3'
        expect "a stage without a recurrent layer" 2 30 'no linear layer' '1 of 4 ranks refused' -- \
            mpirun -n 4 "$tp" configs/kimi-linear-48b-a3b.json --layers 4 --stages 4
        expect "3 ranks for 2 stages" 2 30 '3 ranks are not a multiple of 2 stages' '3 of 3 ranks refused' -- \
            mpirun -n 3 "$tp" $kimi --stages 2
        expect "no such config" 2 30 'no such file' '2 of 2 ranks refused' -- mpirun -n 2 "$tp" /nowhere/config.json
    }
}

# One rank of several is given something else. None decodes a token.
mismatches() {
    local none='no token was decoded' other=$work/other.so version
    version=$(sed -n "s/^ *version: '\(.*\)',/\1/p" meson.build)
    LC_ALL=C sed "s/\x00$version\x00/\x009.9.9\x00/" "$REPLAYSSM_PLUGIN" > "$other"
    sed 's/"linear_num_value_heads": *32/"linear_num_value_heads": 64/' configs/qwen3.5-35b-a3b.json > "$work/heads.json"
    # shellcheck disable=SC2086
    {
        expect "another model on rank 2" 2 30 'rank 2 differs in model: gdn \(rank 0: kda\)' "$none" -- \
            mpirun -n 2 "$tp" $kimi : -n 1 "$tp" $qwen : -n 1 "$tp" $kimi
        expect "a config with other heads on rank 1" 2 30 'rank 1 differs in model: heads=16/64 \(rank 0: heads=16/32\)' "$none" -- \
            mpirun -n 1 "$tp" $qwen : -n 1 "$tp" "$work/heads.json" --layers 4
        expect "another state dtype on rank 3: the layout hash" 2 30 'rank 3 differs in layout hash: [0-9a-f]{16} \(rank 0:' \
            'rank 3 differs in layout: state=bfloat16 \(rank 0: state=float32\)' "$none" -- \
            mpirun -n 3 "$tp" $kimi : -n 1 "$tp" $kimi --state bfloat16
        expect "rank 0 is the odd one" 2 30 'rank 0 differs in model: ring=9 \(rank 1: ring=7\)' "$none" -- \
            mpirun -n 1 "$tp" $qwen --ring 9 : -n 2 "$tp" $qwen --ring 7 : -n 1 "$tp" $qwen --ring 7
        expect "another tp size on rank 3" 2 30 'rank 3 differs in tp size: 2 \(rank 0: 4\)' "$none" -- \
            mpirun -n 3 "$tp" $kimi : -n 1 "$tp" $kimi --stages 2
        expect "another seed on rank 1" 2 30 'rank 1 differs in options: seed=2 \(rank 0: seed=1\)' "$none" -- \
            mpirun -n 1 "$tp" $kimi : -n 1 "$tp" $kimi --seed 2
        expect "another version of the plugin on rank 1" 2 30 'rank 1 differs in plugin: 9\.9\.9 \(rank 0: ' "$none" -- \
            mpirun -n 1 "$tp" $kimi : -n 1 "$tp" $kimi --plugin "$other"
        expect "no plugin on rank 1" 2 30 'rank 1: cannot load the plugin' '1 of 2 ranks refused' "$none" -- \
            mpirun -n 1 "$tp" $kimi : -n 1 "$tp" $kimi --plugin "$work/nothing.so"
    }
}

# Waits for a process to end; a zombie has.
ended() { # pid seconds
    local i
    for ((i = 0; i < $2 * 10; i++)); do
        case $(ps -o stat= -p "$1") in '' | Z*) return 0 ;; esac
        sleep 0.1
    done
    return 1
}

# One of four ranks gets a signal in the midst of decoding. All must end within the limit, and something must say why.
signalled() { # name signal seconds expression
    local name=$1 signal=$2 seconds=$3 expression=$4 victim="" i found=ok
    # shellcheck disable=SC2086
    mpirun -n 4 "$tp" $kimi --steps 100000000 --patience 3 > "$work/log" 2>&1 &
    local job=$!
    for ((i = 0; i < 200; i++)); do # until a rank has used 2 s of a processor it may still be drawing its weights
        victim=$(pgrep -P $job -f replayssm-tp | sed -n 3p)
        [ -n "$victim" ] && [ "$(ps -o cputimes= -p "$victim")" -ge 2 ] && break
        sleep 0.1
    done
    [ -n "$victim" ] && kill "-$signal" "$victim"
    if ! ended $job "$seconds"; then
        pkill -KILL -P $job
        kill -KILL $job
        echo "still running after $seconds s" >> "$work/log"
        found=FAILED
    fi
    wait $job && found=FAILED
    grep -qE "$expression" "$work/log" || found=FAILED
    ended "$victim" 5 || { kill -KILL "$victim" && found=FAILED; }
    verdict $found "$name"
}

dead_ranks() {
    signalled "a rank that is killed" KILL 15 'signal 9|KILLED'
    signalled "a rank that hangs" STOP 30 'waited [3-5] s for .*: another rank hangs or is gone; stopping all'
}

if [ ! -x "$tp" ] || ! command -v mpirun > /dev/null; then
    echo "skipped: MPI ranks (no mpirun, or $tp was not built: libopenmpi-dev and openmpi-bin)"
else
    families_equal_one_rank
    stages_equal_one
    bad_splits
    mismatches
    dead_ranks
fi
[ -z "$python" ] || . tests/tp/torch.sh
echo "$passed passed, $failed failed"
[ $failed = 0 ]
