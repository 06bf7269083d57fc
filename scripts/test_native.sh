#!/usr/bin/env bash
# A smoke test of native mode where torch is a CPU build: its module, as it was built, on stand-ins
# for CUDA's runtime library and for torch's library for CUDA (tests/native). Costs seconds. If CUDA's
# headers were not to be found when stalloc was built, there is no such module; then this says so.
#
# Usage: scripts/test_native.sh VENV
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly python=$1/bin/python work=build/native
readonly standin=$PWD/build/cpp/standin/13

say() { printf 'test-native: %s\n' "$*" >&2; }

read -r torch build < <("$python" -c \
  'import sys, torch; print(torch.__path__[0], "build/" + sys.implementation.cache_tag)')
if [[ $("$python" -c 'import torch; print(torch.version.cuda)') != None ]]; then
  say "this torch is a CUDA build: make test-cuda runs native mode with it"
  exit 0
fi
if ! compgen -G "$build/_torch_cuda_*.so" >/dev/null; then
  say "NOT RUN: native mode was not built, because CUDA's headers are not here"
  exit 0
fi
cuda=$(sed -n 's/^STALLOC_CUDA_INCLUDE:PATH=//p' "$build/CMakeCache.txt")

cmake --preset cpp >/dev/null
cmake --build --preset cpp --target standin_cudart13 >/dev/null
mkdir -p "$work"
"${CXX:-c++}" -std=c++20 -O1 -shared -fPIC -Wall -Wextra -Wno-unused-parameter -Werror \
  -isystem "$torch/include" -isystem "$cuda" -DC10_CUDA_NO_CMAKE_CONFIGURE_FILE \
  tests/native/c10_cuda.cpp -o "$work/libc10_cuda.so" -Wl,-soname,libc10_cuda.so \
  -L"$torch/lib" -lc10
LD_PRELOAD=$standin/libcudart.so.13 LD_LIBRARY_PATH=$standin STANDIN_DEVICES=1 STALLOC_CACHE=0 \
  "$python" tests/native/smoke.py "$PWD/$work/libc10_cuda.so"
