# shellcheck shell=bash disable=SC2154
# Part of tests/tp/run.sh, which sources it: examples/tp/tp_torch.py under torchrun, gloo on the CPU.

tp_torch=examples/tp/tp_torch.py
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1

torchrun() { # ranks args...
    local ranks=$1
    shift
    "$python" -m torch.distributed.run --standalone --nproc-per-node "$ranks" "$@"
}
export -f torchrun
export python

# One rank of several is given something else, or a short life: `odd` is put before the command, `more` behind it.
odd_rank() { # ranks rank odd more args...
    local ranks=$1 rank=$2 odd=$3 more=$4
    shift 4
    # shellcheck disable=SC2016
    torchrun "$ranks" --no-python bash -c 'if [ "$RANK" = '"$rank"' ]; then exec '"$odd"' "$python" "$@" '"$more"'; fi; exec "$python" "$@"' odd "$@"
}
export -f odd_rank

torch_equal() { # name ranks args...
    local name=$1 ranks=$2
    shift 2
    expect "torchrun: $name" 0 120 '^heads: worst relative L2 0 ' '^equal to one rank' -- bash -c 'torchrun "$@"' torchrun "$ranks" $tp_torch "$@"
}

torch_all() {
    local n none='no token was decoded'
    # shellcheck disable=SC2086
    {
        for n in 2 4; do
            torch_equal "kda, tp $n" $n $kimi
            torch_equal "gdn, tp $n" $n $qwen
            torch_equal "mamba2, tp $n" $n $nemotron
        done
        torch_equal "mamba2 with a replicated group, tp 2" 2 $granite
        expect "torchrun: 32 heads over 3 ranks" 1 60 'rank 0: .*tp_size = 3 does not divide 32' 'rank 1: .*tp_size = 3' \
            'rank 2: .*tp_size = 3' '3 of 3 ranks refused' "$none" -- bash -c 'torchrun "$@"' torchrun 3 $tp_torch $kimi
        expect "torchrun: another state dtype on rank 1" 1 60 'rank 1 differs in layout hash' "$none" -- \
            bash -c 'odd_rank "$@"' odd 2 1 "" "--io float32" $tp_torch $kimi
        expect "torchrun: another seed on rank 1" 1 60 'rank 1 differs in options: seed=2 \(rank 0: seed=1\)' "$none" -- \
            bash -c 'odd_rank "$@"' odd 2 1 "" "--seed 2" $tp_torch $kimi
        expect "torchrun: a rank that is killed" 1 90 'exitcode *: *(137|-9)' -- \
            bash -c 'odd_rank "$@"' odd 2 1 "timeout --foreground -s KILL 20" "" $tp_torch $kimi --steps 1000000
        expect "torchrun: times of a rank" 0 120 '^tp 1 +[0-9]' '^rank 1 of 2 +[0-9]' '"tp1_us"' -- bash -c 'torchrun "$@"' torchrun 2 \
            $tp_torch $kimi --time --hidden 64 --batch 2 --rounds 1 --windows 1 --json
    }
}

if "$python" -c 'import torch.distributed as d, sys; sys.exit(not d.is_gloo_available())' 2> /dev/null; then
    torch_all
else
    echo "skipped: torchrun ($python has no torch.distributed with gloo)"
fi
