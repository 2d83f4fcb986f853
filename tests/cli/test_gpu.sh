#!/bin/sh
# test_gpu.sh - tools/test-gpu with a stand-in for the program: parts are chosen, tasks run beside each other, a failure
# is counted and shown, a signal ends every task, and the last line is the sum.
set -eu
cd "$(dirname "$0")/../.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { cat "$tmp/out"; echo "test_gpu.sh: $*"; exit 1; }
printf '#!/bin/sh\n' > "$tmp/nvidia-smi"
cat > "$tmp/maxc" << 'END'
#!/bin/sh
case " $* " in *"$BROKEN"*) echo "error: as asked"; exit 1 ;; esac
echo "$$" >> "$RUNNING"
sleep "$SLEEP"
for a; do case $a in base_output_directory=*) base=${a#*=} ;; steps=*) steps=${a#*=} ;; esac; done
[ -n "${base:-}" ] || exit 0
mkdir -p "$base/r"
i=0
while [ $i -lt "$steps" ]; do i=$((i + 1)); echo "{\"loss\": 2.$i, \"x\": 0, \"grad_norm\": 1.$i, \"y\": 0}"; done > "$base/r/metrics.jsonl"
END
chmod +x "$tmp/maxc" "$tmp/nvidia-smi"
export PATH="$tmp:$PATH" MAXC="$tmp/maxc" RUNNING="$tmp/running" SLEEP=0.01 BROKEN="quantization=int8 "
rc=0
JOBS=3 tools/test-gpu quantization runs > "$tmp/out" 2>&1 || rc=$?
[ $rc = 1 ] || fail "exit status $rc where one task fails"
[ "$(tail -n 1 "$tmp/out")" = "10 passed, 1 failed" ] || fail "the counts"
grep -q '^FAIL    quantization=int8 ' "$tmp/out" && grep -q 'error: as asked' "$tmp/out" || fail "the failure is not shown"
grep -q '^        runs .* s of work' "$tmp/out" || fail "a part's seconds"
# A run whose loss is not finite fails, even if it repeats.
sed 's/2\.\$i/nan/' "$tmp/maxc" > "$tmp/nan" && chmod +x "$tmp/nan"
if MAXC="$tmp/nan" BROKEN=nothing tools/test-gpu runs > "$tmp/out" 2>&1; then fail "nan passed"; fi
if tools/test-gpu no_such_part > "$tmp/out" 2>&1; then fail "a part that does not exist"; fi
grep -q 'the parts are: ops' "$tmp/out" || fail "no list of parts"
# Four at a time, and none is left behind a signal.
: > "$RUNNING"
SLEEP=30 JOBS=4 BROKEN=nothing tools/test-gpu families > "$tmp/out" 2>&1 & pid=$!
for i in $(seq 50); do [ "$(grep -c . "$RUNNING")" -lt 4 ] || break; sleep 0.1; done
[ "$(grep -c . "$RUNNING")" = 4 ] || fail "$(grep -c . "$RUNNING") tasks at a time, expected 4"
since=$(date +%s)
kill "$pid"
wait "$pid" 2> /dev/null && fail "exit status 0 behind a signal"
[ $(($(date +%s) - since)) -lt 20 ] || fail "tasks went on behind a signal"
for p in $(cat "$RUNNING"); do
    if kill -0 "$p" 2> /dev/null && ! grep -q zombie "/proc/$p/status" 2> /dev/null; then fail "task $p still runs"; fi
done
