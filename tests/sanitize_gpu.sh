#!/usr/bin/env bash
# tests/sanitize_gpu.sh memcheck|racecheck|initcheck|synccheck [pytest arguments]: the GPU tests under
# compute-sanitizer, by default all of them, in as many processes as JOBS says (8). Ends with the
# findings of all and exit code 1 if there is one, or a test failed. racecheck misreads some kernels:
# race_report.py knows which, and why there is no race; anything else is an error.
#
# Environment: JOBS; PYTHON; LOGS: a folder for what each process says, a temporary one by default.
set -euo pipefail
cd "$(dirname "$0")/.."
tool=${1:?"usage: tests/sanitize_gpu.sh memcheck|racecheck|initcheck|synccheck [pytest arguments]"}
shift
[ $# -gt 0 ] || set -- tests/gpu
logs=${LOGS:-$(mktemp -d)}
jobs=${JOBS:-8}
export PYTHONUNBUFFERED=1
# CuPy asks the driver for functions that it may lack, which memcheck calls errors; ours are raised.
options=(--tool "$tool")
[ "$tool" = racecheck ] || options+=(--error-exitcode 99)
[ "$tool" != memcheck ] || options+=(--report-api-errors no)
# All that it finds, each by its source line and without where the host was.
[ "$tool" != racecheck ] || options+=(--print-limit 1000000 --show-backtrace no)
export GGUFLOW_CUDA_LINES=1
pids=()
for ((i = 0; i < jobs; i++)); do
	SHARD=$i/$jobs compute-sanitizer "${options[@]}" \
		"${PYTHON:-python}" -m pytest -m gpu -q -p no:cacheprovider "$@" >"$logs/$i.log" 2>&1 &
	pids+=($!)
done
failed=0
for i in "${!pids[@]}"; do
	wait "${pids[$i]}" || { echo "process $i: exit code $?" && failed=1; }
done
if [ "$tool" = racecheck ]; then
	"${PYTHON:-python}" tests/race_report.py "$logs"/*.log || failed=1
	grep -hE "^FAILED|^ERROR|[0-9]+ (passed|failed|skipped)" "$logs"/*.log || true
	exit $failed
fi
grep -hE "^========= |^FAILED|^ERROR|[0-9]+ (passed|failed|skipped)" "$logs"/*.log |
	grep -vE "COMPUTE-SANITIZER$|SUMMARY: 0 |SUMMARY: 0$" || true
exit $failed
