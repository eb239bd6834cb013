#!/usr/bin/env bash
# Runs the whole test suite several times beside busy processes and prints one line per run:
#
#	test/stress.sh RUNS LOAD
#
# The busy processes are children of this script and end with it. The exit status is 1 if a run failed.
set -uo pipefail
runs=${1:-5}
load=${2:-4}
cd "$(dirname "$0")/.."
busy=()
stop() {
	for pid in "${busy[@]}"; do kill "$pid" 2>/dev/null; done
	wait "${busy[@]}" 2>/dev/null
}
trap stop EXIT
for ((i = 0; i < load; i++)); do
	bash -c 'while :; do :; done' &
	busy+=($!)
done
failed=0
mkdir -p .cache
for ((run = 1; run <= runs; run++)); do
	began=$SECONDS
	result=passed
	make test TESTFLAGS=-count=1 >".cache/stress-$run.log" 2>&1 || { result=FAILED; failed=$((failed + 1)); }
	printf 'run %d of %d with %d busy processes: %s in %d s; %s\n' "$run" "$runs" "$load" "$result" \
		$((SECONDS - began)) "$(grep '^DONE' ".cache/stress-$run.log" | tail -n 1)"
done
printf '%d passed, %d failed\n' $((runs - failed)) "$failed"
[ "$failed" = 0 ]
