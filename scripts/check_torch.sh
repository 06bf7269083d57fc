#!/usr/bin/env bash
# Compiles native mode, and no more, against the headers of several versions of torch: what differs
# between them is in csrc/torch/cuda/delegate.h. Nothing is installed; the headers come from wheels,
# half a gigabyte each, that are downloaded once.
#
# Usage: scripts/check_torch.sh PYTHON VERSION..., for example: scripts/check_torch.sh python 2.11.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly python=$1
shift
readonly headers=build/torch-headers

fetch() { # REQUIREMENT FOLDER: unpacks the wheel's headers
  [[ ! -e $2/complete ]] || return 0
  local wheels
  wheels=$(mktemp -d)
  "$python" -m pip download -q --disable-pip-version-check --no-deps --dest "$wheels" "$1"
  "$python" - "$wheels" "$2" <<'PYTHON'
import sys, zipfile
from pathlib import Path
wheel = next(Path(sys.argv[1]).glob("*.whl"))
with zipfile.ZipFile(wheel) as archive:
    archive.extractall(sys.argv[2], [n for n in archive.namelist() if "/include/" in n])
PYTHON
  rm -rf "$wheels"
  touch "$2/complete"
}

fetch nvidia-cuda-runtime==13.0.96 $headers/runtime
fetch nvidia-cuda-crt==13.0.88 $headers/crt

includes=(-Icsrc "-isystem$("$python" -c 'import pybind11; print(pybind11.get_include())')"
  "-isystem$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
  -isystem$headers/runtime/nvidia/cu13/include -isystem$headers/crt/nvidia/cu13/include)
for version in "$@"; do
  folder=$headers/torch-$version
  fetch "torch==$version" "$folder"
  printf 'check-torch: torch %s\n' "$version" >&2
  # As one: torch's headers cost far more to compile than what is in the sources.
  printf '#include "%s"\n' "$PWD"/csrc/torch/cuda/*.cpp |
    "${CXX:-c++}" -std=c++20 -fsyntax-only -Wall -Wextra -Wshadow -Werror "${includes[@]}" \
      "-isystem$folder/torch/include" "-isystem$folder/torch/include/torch/csrc/api/include" \
      -DC10_CUDA_NO_CMAKE_CONFIGURE_FILE "-DSTALLOC_TORCH_VERSION=\"$version\"" -x c++ -
done
