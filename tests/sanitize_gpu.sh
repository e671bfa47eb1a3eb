#!/usr/bin/env bash
# tests/sanitize_gpu.sh none|memcheck|racecheck|initcheck|synccheck [pytest arguments]: the GPU tests
# under compute-sanitizer, by default all of them, or without it (none). JOBS processes (8) take the
# tests from one queue (gpu_queue.py); one that a fault, a test that takes too long or a lost device
# ends is followed by another. Ends with the findings of all, how the tests ended and which kernels
# they launched (gpu_coverage.py); exit code 1 for a finding, a test that failed or did not end, or a
# kernel that only the plain run launched. racecheck misreads some kernels: race_report.py knows
# which, and why there is no race; anything else is an error.
#
# Environment: JOBS; PYTHON; LOGS: a folder for what each process says, a temporary one by default,
# and covered.json; LIMIT: seconds after which no test begins; TEST_LIMIT: seconds a test may take
# (120); PLAIN: covered.json of a run without a tool; BEFORE: that of a run with this tool, whose
# tests need not run again; GPUS: how many there are; PORT: the first of those that processes use;
# MARGIN: seconds after LIMIT when what is left is killed (60).
set -euo pipefail
cd "$(dirname "$0")/.."
tool=${1:?"usage: tests/sanitize_gpu.sh none|memcheck|racecheck|initcheck|synccheck [pytest arguments]"}
shift
[ $# -gt 0 ] || set -- tests/gpu tests/ops/test_sample_distribution.py
logs=${LOGS:-$(mktemp -d)}
jobs=${JOBS:-8}
python=${PYTHON:-python}
gpus=${GPUS:-$(nvidia-smi --list-gpus | wc -l)}
mkdir -p "$logs"
until=$(($(date +%s) + ${LIMIT:-86400}))
export PYTHONUNBUFFERED=1 GGUFLOW_CUDA_LINES=1
export QUEUE=$logs QUEUE_UNTIL=$until QUEUE_TEST=${TEST_LIMIT:-120}
[ -z "${PLAIN:-}" ] || "$python" tests/gpu_coverage.py order "$PLAIN" ${BEFORE:+--before "$BEFORE"} >"$logs/order"
[ -z "${BEFORE:-}" ] || "$python" tests/gpu_coverage.py passed "$BEFORE" >"$logs/done"

[ "$tool" = none ] || export GGUFLOW_SANITIZED=$tool

# All that it finds, each by its source line and without where the host was.
options=(--tool "$tool" --print-limit 1000000 --show-backtrace no --require-cuda-init no)
# It waits for a process that waits for its turn to open the device, or would not see it.
options+=(--launch-timeout 0)
# CuPy asks the driver for functions that it may lack, which memcheck calls errors; ours are raised.
[ "$tool" != memcheck ] || options+=(--report-api-errors no)
[ "$tool" != racecheck ] || options+=(--racecheck-num-workers 1) # of each of the processes

# One process; number: its place among all, for a port of its own. What is not over some time after
# the last test may begin is killed.
under_tool() {
	local number=$1 left=$((until + ${MARGIN:-60} - $(date +%s)))
	shift
	if [ "$tool" = none ]; then
		timeout -k 3 $left "$@"
	else
		timeout -k 3 $left compute-sanitizer "${options[@]}" --port $((${PORT:-50000} + 16 * number)) "$@"
	fi
}

worker() {
	local i=$1 n=0
	# The last one sees all GPUs, and has the tests that use several.
	if [ "$gpus" -gt 1 ]; then
		export QUEUE_PAIR=0
		if [ "$i" = $((jobs - 1)) ]; then QUEUE_PAIR=1; else export CUDA_VISIBLE_DEVICES=$((i % gpus)); fi
	fi
	while [ "$(date +%s)" -lt "$until" ] && [ $n -lt 40 ]; do
		WORKER=$i.$n under_tool "$i" "$python" -m pytest -m gpu -q -p no:cacheprovider \
			--basetemp "$logs/tmp.$i.$n" "${arguments[@]}" >"$logs/$i.$n.log" 2>&1 || true
		[ -s "$logs/$i.$n.jsonl" ] || [ ! -e "$logs/over.$i.$n" ] || rm "$logs/$i.$n".* # nothing was left
		[ ! -e "$logs/over.$i.$n" ] || break
		n=$((n + 1))
	done
}
# The tool has to find these, or it would find nothing else.
planted() {
	local way
	for way in launch graph; do
		under_tool "$jobs" "$python" tests/gpu_planted.py "$tool" $way >"$logs/planted.$way" 2>&1 || true
		grep -qE "SUMMARY: [1-9]" "$logs/planted.$way" || touch "$logs/planted.failed"
	done
}
arguments=("$@")
pids=()
if [ "$tool" = memcheck ] || [ "$tool" = racecheck ]; then
	planted &
	pids+=($!)
fi
for ((i = 0; i < jobs; i++)); do
	worker "$i" &
	pids+=($!)
done
wait "${pids[@]}" || true
rm -rf "$logs"/tmp.*
failed=0
[ ! -e "$logs/planted.failed" ] || { echo "a fault that was planted was not found" && failed=1; }
if [ "$tool" = racecheck ]; then
	"$python" tests/race_report.py "$logs"/*.log || failed=1
elif [ "$tool" != none ]; then
	grep -hoE "(^|[^=])={9} .*" "$logs"/*.log | grep -vE "COMPUTE-SANITIZER|SUMMARY: 0 " |
		sort | uniq -c | sort -rn | head -n 100 && failed=1
fi
grep -hE "^FAILED|^ERROR|^E  " "$logs"/*.log | sort | uniq -c | sort -rn | head -60 || true
coverage=(report "$logs")
[ "$tool" = none ] || coverage+=(--tool)
[ -z "${PLAIN:-}" ] || coverage+=(--plain "$PLAIN")
[ -z "${BEFORE:-}" ] || coverage+=(--before "$BEFORE")
"$python" tests/gpu_coverage.py "${coverage[@]}" || failed=1
exit $failed
