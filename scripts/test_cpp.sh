#!/usr/bin/env bash
# Builds one of CMakePresets.json's configurations and runs its C++ tests.
#
# Usage: scripts/test_cpp.sh cpp|asan|tsan
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly preset=$1
declare -a launcher=()
# The thread sanitizer of older compilers cannot live with as much address randomisation as newer
# kernels use: turn it off where that is allowed.
if [[ $preset == tsan ]] && setarch -R true 2>/dev/null; then
  launcher=(setarch -R)
fi

printf '== C++ tests: %s\n' "$preset"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$preset" >"$log" 2>&1 || {
  cat "$log" >&2
  exit 1
}
cmake --build --preset "$preset"
"${launcher[@]}" ctest --preset "$preset"
