#!/usr/bin/env bash
# Compiles native mode, and no more, against the headers of several versions of torch: what differs
# between them is in csrc/torch/cuda/delegate.h.
#
# Usage: scripts/check_torch.sh PYTHON VERSION..., for example: scripts/check_torch.sh python 2.11.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly python=$1
shift
readonly headers=build/torch-headers
scripts/torch_headers.sh "$python" "$@"

includes=(-Icsrc "-isystem$("$python" -c 'import pybind11; print(pybind11.get_include())')"
  "-isystem$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
  -isystem$headers/cuda/include)
for version in "$@"; do
  include=$headers/torch-$version/torch/include
  printf 'check-torch: torch %s\n' "$version" >&2
  # As one: torch's headers cost far more to compile than what is in the sources.
  printf '#include "%s"\n' "$PWD"/csrc/torch/cuda/*.cpp |
    "${CXX:-c++}" -std=c++20 -fsyntax-only -Wall -Wextra -Wshadow -Werror "${includes[@]}" \
      "-isystem$include" "-isystem$include/torch/csrc/api/include" \
      -DC10_CUDA_NO_CMAKE_CONFIGURE_FILE -DSTALLOC_MODULE=_torch_cuda \
      "-DSTALLOC_TORCH_VERSION=\"$version\"" '-DSTALLOC_TORCH_INTERFACE=""' -x c++ -
done
