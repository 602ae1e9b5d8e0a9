#!/bin/bash
# One process that serves random requests for SECONDS, with bad calls in between, and whose memory must not grow: its
# resident pages in the last third of the run against the middle third. Every request is checked by the program
# itself. Ends with a line `N passed, N failed`.
# Usage: tests/soak.sh SECONDS [option of replayssm-server-sim ...]
set -u
cd "$(dirname "$0")/.."
seconds=$1
shift
sim=${RSSM_BUILD:-build}/examples/replayssm-server-sim
args=(--layers 4 --batch 32 --fault-rate 20 "$@")
log=$(mktemp)
trap 'rm -f "$log" "$log.rss"' EXIT

"$sim" "${args[@]}" --seconds "$seconds" > "$log" 2>&1 &
pid=$!
started=$SECONDS
: > "$log.rss"
while kill -0 $pid 2> /dev/null; do
    sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\) kB/\1/p' /proc/$pid/status >> "$log.rss" 2> /dev/null
    sleep 1
done
wait $pid
rc=$?
tail -n 7 "$log"
flat=$(awk '{ rss[n++] = $1 } END {
    for (i = int(n / 3); i < n; i++) { third = i < int(2 * n / 3) ? 1 : 2; if (rss[i] > most[third]) most[third] = rss[i] }
    printf "%d kB in the middle third, %d kB in the last: ", most[1], most[2]
    print (n >= 9 && most[2] <= most[1] + 1024) ? "flat" : "NOT FLAT" }' "$log.rss")
echo "$((SECONDS - started)) s; resident: $flat"
passed=0 failed=0
for good in "$rc = 0" "'${flat##*: }' = flat"; do
    if eval "[ $good ]"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
