#!/bin/sh
# unused.sh - no public function of the library that nothing calls, or tests alone (tools/unused).
cd "$(dirname "$0")/../.."
[ -f build/test/libmaxc.a ] || { echo "build/test/libmaxc.a is missing; run make test-bin"; exit 1; }
tools/unused
