#!/usr/bin/env bash
# tests/sanitize.sh address,undefined|thread [pytest arguments]: builds the CPU kernels with a
# sanitizer, or the first two in one, and runs tests on them, by default the op suite and whole tiny
# models. Whatever the sanitizer finds ends the process with its report.
#
# tests/sanitize.sh few: what a change waits for, less than two minutes of two processors: one set
# with the first two, and every so many tests.
#
# Environment: ISAS: instruction sets to build, those that this machine runs by default; SHARD=i/n:
# every n-th test; JOBS: processes that run tests, 1 by default; PYTHON; CXX with the runtime libraries
# of the sanitizers (GCC's are preloaded into Python).
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?"usage: tests/sanitize.sh address|undefined|address,undefined|thread|few [pytest arguments]"}
shift
python=${PYTHON:-python}
cxx=${CXX:-g++}
flags= left_out= options=()
if [ "$kind" = few ]; then
	kind=address,undefined
	export SHARD=${SHARD:-0/41}
	JOBS=${JOBS:-2}
	ISAS=${ISAS:-$($python -c "
from gguflow.engine.backends.cpu import runnable_isas
print('avx2' if 'avx2' in runnable_isas() else runnable_isas()[0])")}
	# Without long products and a million draws, which take minutes.
	options=(-m "not slow" --ignore tests/ops/test_cpu_pool.py --ignore tests/serving/test_equal_bits.py
		--ignore tests/ops/test_sample_distribution.py)
	# Functions with many accesses call for their checks: compiled in half the time.
	flags="--param asan-instrumentation-with-call-threshold=30"
	# An access through such a pointer ends the process all the same: half of the time, again.
	left_out=null,object-size,pointer-overflow
fi
build=build/sanitize/$kind
isas=${ISAS:-$($python -c "
from gguflow.engine.backends.cpu import runnable_isas
print(*runnable_isas())")}

cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DGGUFLOW_SANITIZE="$kind" \
	-DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_FLAGS="$flags" -DGGUFLOW_NOT_CHECKED="$left_out" >/dev/null
for isa in $isas; do
	cmake --build "$build" --target "gguflow_cpu_$isa" -j "$(nproc)" >/dev/null
done

suite=(tests/ops tests/serving/test_equal_bits.py tests/models/test_architectures.py
	tests/verify tests/models/test_random_models.py)
case $kind in
address*) runtime=libasan.so ;;
undefined) runtime=libubsan.so ;;
# Races are between threads: what runs on one needs no look.
thread) runtime=libtsan.so suite=(tests/ops/test_cpu_pool.py tests/ops/test_cpu_mul_mat.py
	tests/ops/test_cpu_kernels.py tests/models/test_random_models.py) ;;
*) echo "no sanitizer called $kind: address, undefined or thread" >&2 && exit 2 ;;
esac

# Python is not built with the sanitizer, so its runtime has to come first, and libstdc++ before
# anything throws; what Python itself leaks at exit is none of our business.
export LD_PRELOAD="$($cxx -print-file-name=$runtime) $($cxx -print-file-name=libstdc++.so)"
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:report_signal_unsafe=0
export OPENBLAS_NUM_THREADS=1 # numpy's, whose meetings the sanitizer does not see
export PYTHONMALLOC=malloc # so that a read past an array of Python's is seen
[ $# -gt 0 ] || set -- -q -x "${suite[@]}"
[ "${JOBS:-1}" = 1 ] || options+=(-n "$JOBS" --dist worksteal)
# What is written as the process ends must not be captured.
exec "$python" -m pytest --capture=sys --cpu-lib "$build" -p no:cacheprovider "${options[@]}" "$@"
