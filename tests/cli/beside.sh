#!/bin/sh
# beside.sh - threads of a run that wait for each other leave the processor to others: two runs of two threads, beside
# each other and beside whatever else the machine does, take about the processor time that runs of one thread take.
# alone: it measures processor time.
set -u
cd "$(dirname "$0")/../.."
maxc=${MAXC:-build/maxc}
d=$(mktemp -d "${TMPDIR:-/tmp}/maxc-beside-XXXXXX")
trap 'rm -rf "$d"' EXIT
unset OMP_WAIT_POLICY GOMP_SPINCOUNT
train() { # NAME THREADS
    "$maxc" train configs/recipes/demo.yml base_output_directory="$d/$1" run_name=r steps=6 num_threads="$2" device=cpu \
        enable_checkpointing=false enable_tensorboard=false > "$d/$1.log" 2>&1 || { cat "$d/$1.log"; exit 1; }
}
times > "$d/start" # the second line: what children have taken so far, "0m1.23s 0m0.04s"
train a 1; train b 1
times > "$d/alone"
train c 2 & train d 2; wait
times > "$d/beside"
for f in start alone beside; do sed -n 2p "$d/$f" | tr 'ms' '  '; done | awk '
    { t[NR] = $1 * 60 + $2 + $3 * 60 + $4 }
    END {
        one = t[2] - t[1]; two = t[3] - t[2]
        printf "beside.sh: processor time %.1f s with one thread, %.1f s with two beside each other\n", one, two
        exit !(one > 0 && two < 2 * one)
    }'
