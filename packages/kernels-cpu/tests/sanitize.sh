#!/bin/sh
# Build the native library with address and undefined-behaviour sanitizers in a temporary folder, and run this package's
# tests with it. They stop at the first access out of bounds, shift too far, misaligned load and the like.
#
#   packages/kernels-cpu/tests/sanitize.sh [arguments of pytest]
#
# PYTHON names the interpreter: one that has torch, pytest, hypothesis, nanobind and cmake. Without arguments all tests
# in tests/cpu run.
set -eu

package=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM

executable=$("$python" -c 'import sys; print(sys.executable)')
PATH=$(dirname "$executable"):$PATH
generator='Unix Makefiles'
command -v ninja >/dev/null && generator=Ninja
build() {
  cmake -S "$package" -B "$folder/build" -G "$generator" -DCMAKE_BUILD_TYPE=Release -DMODULM_SANITIZE=ON \
    -DCMAKE_CXX_FLAGS=-fno-var-tracking-assignments -DPython_EXECUTABLE="$executable" \
    -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" &&
    cmake --build "$folder/build" --target _native --parallel
}
start=$(date +%s)
build >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
echo "built in $(($(date +%s) - start)) s"

mkdir "$folder/site"
cp -r "$package/src/modulm_kernels_cpu" "$folder/site/"
rm -f "$folder/site/modulm_kernels_cpu/"_native.*
cp "$folder/build/"_native.* "$folder/site/modulm_kernels_cpu/"
# An editable installation would send imports back to its own library.
cat >"$folder/site/sitecustomize.py" <<'PY'
import sys

sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != "_editable_skbc_modulm_kernels_cpu"]
PY

# The interpreter is not instrumented: its own leaks and torch's are none of our business. libasan has to come first,
# and libstdc++ beside it, or exceptions find no way through.
preload="$(${CXX:-g++} -print-file-name=libasan.so) $(${CXX:-g++} -print-file-name=libstdc++.so.6)"
[ $# -gt 0 ] || set -- "$package/tests/cpu"
start=$(date +%s)
status=0
PYTHONPATH=$folder/site${PYTHONPATH:+:$PYTHONPATH} LD_PRELOAD=$preload PYTHONDONTWRITEBYTECODE=1 \
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:log_path="$folder/report" \
  UBSAN_OPTIONS=print_stacktrace=1:log_path="$folder/report" \
  OMP_WAIT_POLICY=passive "$python" -c '
import sys
import modulm_kernels_cpu._native as native
assert native.__file__.startswith(sys.argv[1]), native.__file__
import pytest
sys.exit(pytest.main(sys.argv[2:]))' "$folder" -p no:cacheprovider "$@" || status=$?
cat "$folder"/report* 2>/dev/null || true
echo "sanitized tests: status $status, $(($(date +%s) - start)) s"
exit $status
