#!/bin/sh
# run_tests.sh - tools/run-tests on a tree of small tests: two at a time, one by itself where it asks for that, results
# in order, the output of what failed whole, and the numbers in the last line.
cd "$(dirname "$0")/../.." || exit 1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0
say() { echo "run_tests.sh: $*"; bad=1; }
mkdir -p "$tmp/tools" "$tmp/tests/cli" "$tmp/build/test"
cp tools/run-tests "$tmp/tools/"
printf '#!/bin/sh\n' > "$tmp/tools/lint"
printf '#!/bin/sh\necho "ok      x (0.1 s)"; echo "    y.c:3: broken"; echo "FAIL    y (0.1 s)"; echo "1 passed, 1 failed"; exit 1\n' \
    > "$tmp/build/test/tests_run"
chmod +x "$tmp/tools/lint" "$tmp/build/test/tests_run"
# a and b wait for each other; c would be in their way
printf 'cd "$(dirname "$0")"; : > a; n=0; until [ -e b ]; do sleep 0.1; n=$((n + 1)); [ $n -lt 100 ] || exit 1; done\n' > "$tmp/tests/cli/a.sh"
printf 'cd "$(dirname "$0")"; : > b; n=0; until [ -e a ]; do sleep 0.1; n=$((n + 1)); [ $n -lt 100 ] || exit 1; done; : > ended\n' > "$tmp/tests/cli/b.sh"
printf '# alone: a reason.\ncd "$(dirname "$0")"; [ -e ended ]\n' > "$tmp/tests/cli/a_first.sh"
printf 'seq 10; echo "[$MAXC_STEPS]"; exit 255\n' > "$tmp/tests/cli/c.sh" # a status at which xargs would stop
MAXC_STEPS=3 TEST_JOBS=2 "$tmp/tools/run-tests" > "$tmp/out" 2>&1 && say "a test failed, and run-tests did not"
sed 's/ ([0-9]* s)$//' "$tmp/out" > "$tmp/got"
{
    printf 'ok      lint\n    y.c:3: broken\nFAIL    y (0.1 s)\nunit tests: 1 passed, 1 failed\n'
    printf 'ok      tests/cli/a.sh\nok      tests/cli/a_first.sh\nok      tests/cli/b.sh\nFAIL    tests/cli/c.sh\n'
    seq 10
    printf '[]\n5 passed, 2 failed\n'
} | diff - "$tmp/got" || say "expected what stands at the left"
grep -q '^10$' "$tmp/build/test.log" || say "the log is not whole"
exit $bad
