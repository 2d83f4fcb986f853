#!/bin/sh
# ranks.sh - runs of several ranks, as processes of this machine: killed, told to stop, started twice, without a disk.
# What they compute is compared in tests/train/ranks_test.c.
# alone: ranks that stop are told from slow ones by the clock.
set -u
cd "$(dirname "$0")/../.."
maxc=${MAXC:-$PWD/build/maxc}
d=$(mktemp -d "${TMPDIR:-/tmp}/maxc-ranks-XXXXXX")
trap 'rm -rf "$d"' EXIT
bad=0
fail() { echo "ranks.sh: $*" >&2; bad=1; }
port=$((20000 + $$ % 12000)) # below the ports that connections are given by themselves
# start SIZE NAME STEPS [key=value...]: the ranks in the background; $p0 $p1 ... are their processes. Each start has a
# port of its own: a closed one is not always free at once.
start() {
    size=$1 name=$2 steps=$3; shift 3
    port=$((port + 1)) r=0 pids=
    while [ $r -lt "$size" ]; do
        RANK=$r WORLD_SIZE=$size MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            "$maxc" train decoder_block=llama2 vocab_size=300 base_emb_dim=32 base_num_query_heads=4 \
            base_num_kv_heads=2 head_dim=8 base_mlp_dim=64 base_num_decoder_layers=2 max_target_length=32 \
            dtype=float32 learning_rate=1e-2 num_threads=1 per_device_batch_size=1 enable_tensorboard=false \
            base_output_directory="$d/$name" run_name=r steps="$steps" learning_rate_schedule_steps=400 \
            local_checkpoint_directory="$d/ram" "$@" > "$d/$name.$r.log" 2>&1 &
        eval "p$r=$!"; pids="$pids $!"
        r=$((r + 1))
    done
}
finish() { # waits; $rcs are the exit statuses
    rcs=
    for p in $pids; do rc=0; wait "$p" || rc=$?; rcs="$rcs $rc"; done
}
under_way() { while kill -0 $p0 2> /dev/null && [ ! -s "$d/$1/r/metrics.jsonl" ]; do sleep 0.02; done; }
same_end() { # NAME STEPS
    for f in model optimizer; do
        cmp "$d/ref/r/checkpoints/$2/$f.safetensors" "$d/$1/r/checkpoints/$2/$f.safetensors" || fail "$1: $f differs"
    done
    for r in ref "$1"; do sed -E 's/.*"step": ([0-9]+),.*"loss": ([^,]*),.*/\1 \2/' "$d/$r/r/metrics.jsonl" > "$d/$r.txt"; done
    cmp "$d/ref.txt" "$d/$1.txt" || fail "$1: the metrics differ"
}
n=400
start 3 ref $n; finish
[ "$rcs" = " 0 0 0" ] || fail "three ranks gave$rcs: $(cat "$d"/ref.*.log)"
[ "$(wc -l < "$d/ref/r/metrics.jsonl")" = $n ] || fail "not one line of metrics for each step"
grep -q '96 tokens per step = 3 data ranks' "$d/ref.0.log" || fail "$(cat "$d/ref.0.log")"
[ ! -s "$d/ref.1.log" ] || fail "rank 1 talks: $(cat "$d/ref.1.log")"

# SIGTERM to one rank, and not the first: all finish the same step, one checkpoint, status 75; the same bits after it.
for try in 1 2 3 4 5; do
    rm -rf "$d/term"
    start 3 term $n checkpoint_period=100000
    under_way term
    kill -TERM $p2 2> /dev/null
    finish
    [ "$rcs" = " 0 0 0" ] || break
done
[ "$rcs" = " 75 75 75" ] || fail "SIGTERM on rank 2 gave$rcs: $(tail -n 2 "$d"/term.*.log)"
at=$(sed -n 's/.*stopped at step \([0-9]*\);.*/\1/p' "$d"/term.*.log | sort -u)
[ "$(ls "$d/term/r/checkpoints")" = "$at" ] || fail "stopped at [$at], saved [$(ls -A "$d/term/r/checkpoints")]"
start 3 term $n checkpoint_period=100000; finish
[ "$rcs" = " 0 0 0" ] && grep -q "resuming: step $at," "$d/term.0.log" || fail "no resume:$rcs: $(cat "$d/term.0.log")"
same_end term $n

# kill -9 of a rank, the first and another: the rest end with status 5 and its name; the next start goes on, same bits.
for victim in 0 1; do
    for try in 1 2 3 4 5; do
        rm -rf "$d/kill"
        start 3 kill $n checkpoint_period=20
        under_way kill
        eval "kill -9 \$p$victim" 2> /dev/null
        finish
        [ "$rcs" = " 0 0 0" ] || break
    done
    want=" 5 5 5"; [ $victim = 0 ] && want=" 137 5 5"; [ $victim = 1 ] && want=" 5 137 5"
    [ "$rcs" = "$want" ] || fail "kill -9 of rank $victim gave$rcs: $(tail -n 2 "$d"/kill.*.log)"
    for r in 0 1 2; do
        [ $r = $victim ] || grep -q "rank $victim (host .*, process [0-9]*) is gone" "$d/kill.$r.log" || fail "rank $r does not name rank $victim: $(cat "$d/kill.$r.log")"
    done
    start 3 kill $n checkpoint_period=20; finish
    [ "$rcs" = " 0 0 0" ] || fail "no start after kill -9 of rank $victim:$rcs: $(cat "$d/kill.0.log")"
    [ -z "$(find "$d/kill/r/checkpoints" -name '.tmp*')" ] || fail "something is left of a save"
    same_end kill $n
done

# A rank that is stopped or killed at a random instant of a whole run, while it starts, trains or saves: the others end
# with status 5 and name it within the heartbeat's limit and a few seconds. One that has not even come is named as
# absent while it is waited for. Then the run goes on.
limit=3
seed=$$
random() { seed=$(((seed * 1103515245 + 12345) % 2147483648)); pick=$((seed / 65536 % $1)); } # into $pick
for try in $(seq "${RANK_FAULTS:-2}"); do
    rm -rf "$d/stop"
    random 3; victim=$pick
    random 900; ms=$pick sig=STOP
    [ $((try % 3)) = 2 ] && sig=KILL
    start 3 stop 1000000 checkpoint_period=5 heartbeat_timeout_seconds=$limit distributed_initialization_timeout=8
    sleep "$(printf '0.%03d' "$ms")"
    eval "v=\$p$victim"
    kill -$sig "$v"
    end=$(($(date +%s) + limit + 27)) late=
    for p in $pids; do
        [ "$p" = "$v" ] && continue
        while kill -0 "$p" 2> /dev/null && [ "$(date +%s)" -lt $end ]; do sleep 0.05; done
        kill -0 "$p" 2> /dev/null && late="$late $p"
    done
    kill -9 $pids 2> /dev/null; finish
    what="$sig of rank $victim after $ms ms"
    case "$rcs" in " 5 5 137" | " 5 137 5" | " 137 5 5") ;; *) fail "$what gave$rcs" ;; esac
    [ -z "$late" ] || fail "$what: still there: $(tail -n 2 "$d"/stop.*.log)"
    for r in 0 1 2; do
        # That a rank has not come is for rank 0 to say.
        [ $r = "$victim" ] || grep -qE "rank $victim \(|rank 0 running there|from rank $victim," "$d/stop.$r.log" ||
            grep -qE "have not come:.* $victim\b" "$d/stop.0.log" ||
            fail "$what: rank $r does not name it: $(cat "$d/stop.$r.log")"
    done
    left=$(find "$d" -maxdepth 2 -name '.maxc-rendezvous-*')
    [ -z "$left" ] || [ "$victim" = 0 ] || fail "$what: a secret is left behind"
    rm -f $left
done

# Ranks that differ are refused, and rank 0 says what it is; a secret is not written down.
start 2 refused 3 rendezvous_secret=0123456789abcdef; finish
[ "$rcs" = " 0 0" ] || fail "a secret of its own gave$rcs: $(cat "$d"/refused.*.log)"
! grep -rqs 0123456789abcdef "$d/refused" || fail "the secret stands in $(grep -rls 0123456789abcdef "$d/refused")"
port=$((port + 1))
for r in 0 1; do
    RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$maxc" train run_name=x base_output_directory="$d" \
        dataset_type=synthetic steps=$((r + 5)) > "$d/differ.$r" 2>&1 & eval "p$r=$!"
done
pids="$p0 $p1"; finish
[ "$rcs" = " 2 2" ] && grep -q 'rank 1 (.*differs in steps;' "$d/differ.0" && [ ! -s "$d/differ.1" ] ||
    fail "other configurations gave$rcs: $(cat "$d"/differ.*)"

# What is wrong with the settings of all is said by one.
start 2 many 3 mesh=fsdp=4; finish
[ "$rcs" = " 2 2" ] && grep -q 'multiplies to 4 ranks and there are 2' "$d/many.0.log" && [ ! -s "$d/many.1.log" ] ||
    fail "a mesh of four for two gave$rcs: $(cat "$d"/many.*.log)"
start 2 uncut 3 mesh=stage=2 num_pipeline_repeats=4; finish
[ "$rcs" = " 2 2" ] && grep -q 'has 2 layers, and 8 chunks' "$d/uncut.0.log" && ! grep -q chunks "$d/uncut.1.log" ||
    fail "two layers for eight chunks gave$rcs: $(cat "$d"/uncut.*.log)"
start 3 typo 3 learning_rat=1; finish
[ "$rcs" = " 2 2 2" ] && grep -q 'unknown key `learning_rat`' "$d/typo.0.log" && [ ! -s "$d/typo.1.log" ] && [ ! -s "$d/typo.2.log" ] ||
    fail "an unknown key gave$rcs: $(tail "$d"/typo.*.log)"
start 2 lost 3 no-such.yml; finish
[ "$rcs" = " 3 3" ] && grep -q 'no file no-such.yml' "$d/lost.0.log" && [ ! -s "$d/lost.1.log" ] ||
    fail "a missing file gave$rcs: $(tail "$d"/lost.*.log)"
# What is wrong on another rank alone it says itself.
port=$((port + 1))
for r in 0 1; do
    [ $r = 0 ] || export MAXC_STEPS=none
    RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$maxc" train run_name=x base_output_directory="$d" \
        dataset_type=synthetic distributed_initialization_timeout=8 > "$d/alone.$r" 2>&1 & eval "p$r=$!"
done
unset MAXC_STEPS
pids="$p0 $p1"; finish
[ "$rcs" = " 5 2" ] && grep -q 'rank 1, unlike rank 0: .*' "$d/alone.1" && grep -q 'MAXC_STEPS' "$d/alone.1" && grep -q 'have not come: 1' "$d/alone.0" ||
    fail "a configuration that one rank cannot read gave$rcs: $(cat "$d"/alone.*)"

# Rank 0 says why the start cannot go on: here all have the folder of a run that is in use.
start 2 used 100000 checkpoint_period=100000; first=$pids
under_way used
start 2 used 100000; finish
[ "$rcs" = " 2 2" ] && grep -q 'run.lock is locked by process' "$d/used.0.log" && ! grep -q locked "$d/used.1.log" || fail "two jobs on one folder gave$rcs: $(cat "$d"/used.*.log)"
for p in $first; do kill -INT "$p"; done
pids=$first; finish
[ "$rcs" = " 75 75" ] || fail "SIGINT gave$rcs"

# Saves that fail, on all ranks alike: rank 0 keeps the state, all stop, and go on from there.
start 2 full $n checkpoint_period=10 max_checkpoint_failures=2
while kill -0 $p0 2> /dev/null && [ ! -d "$d/full/r/checkpoints/10" ]; do sleep 0.01; done
mv "$d/full/r/checkpoints" "$d/full/r/away"; : > "$d/full/r/checkpoints"
finish
rm "$d/full/r/checkpoints"; mv "$d/full/r/away" "$d/full/r/checkpoints"
[ "$rcs" = " 5 5" ] && grep -q 'Its whole state is kept in' "$d/full.0.log" || fail "failed saves gave$rcs: $(tail -n 3 "$d"/full.*.log)"
start 2 full $n checkpoint_period=10; finish
[ "$rcs" = " 0 0" ] && grep -q "from $d/ram/maxc-r-" "$d/full.0.log" || fail "no resume:$rcs: $(cat "$d/full.0.log")"

# Ranks that do not come, and one that finds nobody.
rc=0; RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port + 1)) "$maxc" train run_name=x base_output_directory="$d" \
    distributed_initialization_timeout=0.2 > "$d/out" 2>&1 || rc=$?
[ $rc = 5 ] && grep -q '1 of 2 ranks have not come: 1' "$d/out" || fail "alone: $rc: $(cat "$d/out")"
rc=0; RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port + 2)) "$maxc" train run_name=x base_output_directory="$d" \
    distributed_initialization_timeout=0.2 > "$d/out" 2>&1 || rc=$?
[ $rc = 5 ] && grep -q 'is rank 0 running there' "$d/out" || fail "nobody: $rc: $(cat "$d/out")"
# Told to stop before the others have come.
RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port + 4)) "$maxc" train run_name=x base_output_directory="$d" > "$d/out" 2>&1 & p0=$!
RANK=2 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port + 5)) "$maxc" train run_name=x base_output_directory="$d" > "$d/out2" 2>&1 & p1=$!
pids="$p0 $p1"
for p in $pids; do # its handlers are there
    while kill -0 $p 2> /dev/null && ! grep -q 'SigCgt:.*[0-9a-f]*4[0-9a-f]\{3\}$' /proc/$p/status; do sleep 0.02; done
    kill -TERM $p
done
finish
[ "$rcs" = " 75 75" ] && grep -q 'stopped while waiting for the other ranks' "$d/out" || fail "stopped early:$rcs: $(cat "$d/out" "$d/out2")"

# A folder of the same name with other weights.
for r in 0 1; do mkdir "$d/own$r"; cp -r tests/fixtures/models/llama3 "$d/own$r/model"; done
f=$d/own1/model/model.safetensors
printf 'abcd' | dd of="$f" bs=1 seek=$((8 + $(od -An -tu8 -N8 "$f"))) conv=notrunc 2> /dev/null
port=$((port + 1)) pids=
for r in 0 1; do
    (cd "$d/own$r" && RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port exec "$maxc" train mesh=data=2 run_name=r \
        load_parameters_path=model dataset_type=synthetic steps=1 max_target_length=32 per_device_batch_size=1 num_threads=1 \
        sharding_tolerance=1 base_output_directory="$d/own") > "$d/own.$r.log" 2>&1 &
    pids="$pids $!"
done
finish
[ "$rcs" = " 2 2" ] && grep -q 'rank 1 has other weights in model than rank 0' "$d/own.0.log" && [ ! -d "$d/own/r/checkpoints" ] ||
    fail "other weights:$rcs: $(cat "$d/own.0.log")"

# What docs/runs.md shows.
awk '/^## Several ranks/ { here = 1 } here && /^```$/ { exit } on; here && /^```sh$/ { on = 1 }' docs/runs.md |
    sed "s/29500/$((port + 3))/" > "$d/shown"
[ -s "$d/shown" ] || fail "docs/runs.md shows no commands"
(maxc() { "$maxc" "$@" base_output_directory="$d" steps=2 base_emb_dim=32 base_num_decoder_layers=1 max_target_length=64 \
    per_device_batch_size=1; }; . "$d/shown") > "$d/out" 2>&1
[ -s "$d/two/checkpoints/2/manifest.json" ] && grep -q '2 data ranks' "$d/out" || fail "docs/runs.md: $(cat "$d/out")"
[ $bad = 0 ] && echo "ranks.sh: all held"
