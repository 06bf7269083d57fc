#!/usr/bin/env bash
# Builds and runs the C++ benchmarks. Further arguments go to each, as in
# scripts/bench.sh --benchmark_filter=Planned
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cmake --preset cpp >/dev/null
cmake --build --preset cpp
for benchmark in build/cpp/*_benchmark; do
  printf '== %s\n' "$(basename "$benchmark")"
  "$benchmark" "$@"
done
