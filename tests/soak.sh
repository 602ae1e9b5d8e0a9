#!/bin/bash
# One process that serves random requests for SECONDS, with bad calls in between, and whose memory must not grow: its
# resident pages in the last third of the run against the middle third, and with `--device cuda` its device memory too.
# Every request is checked by the program itself. Ends with a line `N passed, N failed`.
# Usage: tests/soak.sh SECONDS [option of replayssm-server-sim ...]
set -u
cd "$(dirname "$0")/.."
seconds=$1
shift
sim=${RSSM_BUILD:-build}/examples/replayssm-server-sim
args=(--layers 4 --batch 32 --fault-rate 20 "$@")
log=$(mktemp)
trap 'rm -f "$log" "$log".*' EXIT
case " $* " in
*" --device cuda "* | *" --device=cuda "*) on_gpu=1 ;;
*) on_gpu= ;;
esac

# kB of the device that process $1 has, if any yet.
device_memory() {
    nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits |
        awk -F ', *' -v pid="$1" '$1 == pid { sum += $2; found = 1 } END { if (found) print 1024 * sum }'
}

# Of one number a line: the most in each third. At most `bar` kB more in the last than in the middle is flat.
judge() { # file bar
    awk -v bar="$2" '{ kb[n++] = $1 } END {
        for (i = int(n / 3); i < n; i++) { third = i < int(2 * n / 3) ? 1 : 2; if (kb[i] > most[third]) most[third] = kb[i] }
        printf "%d kB in the middle third, %d kB in the last: ", most[1], most[2]
        print (n >= 9 && most[1] > 0 && most[2] <= most[1] + bar) ? "flat" : "NOT FLAT" }' "$1"
}

"$sim" "${args[@]}" --seconds "$seconds" > "$log" 2>&1 &
pid=$!
started=$SECONDS
touch "$log.resident" "$log.device"
while kill -0 $pid 2> /dev/null; do
    sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\) kB/\1/p' /proc/$pid/status >> "$log.resident" 2> /dev/null
    [ -z "$on_gpu" ] || device_memory $pid >> "$log.device"
    sleep 1
done
wait $pid
rc=$?
tail -n 7 "$log"
passed=0 failed=0
count() { # command...
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}
count [ "$rc" = 0 ]
flat=$(judge "$log.resident" 1024)
echo "$((SECONDS - started)) s; resident: $flat"
count [ "${flat##*: }" = flat ]
if [ -n "$on_gpu" ]; then
    flat=$(judge "$log.device" 2048) # the driver takes 2 MB at a time
    echo "device memory: $flat"
    count [ "${flat##*: }" = flat ]
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
