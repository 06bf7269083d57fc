#!/usr/bin/env bash
# Downloads the headers of versions of torch, and of CUDA, out of their wheels: half a gigabyte each,
# once. Nothing is installed.
#
# Usage: scripts/torch_headers.sh PYTHON VERSION..., for example: scripts/torch_headers.sh python 2.11.0
# Fills build/torch-headers/torch-VERSION/torch/include and build/torch-headers/cuda/include.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly python=$1
shift
readonly headers=build/torch-headers
# What may be installed on this machine does not limit which headers are read.
export PIP_CONSTRAINT=/dev/null

unpack() { # FOLDER REQUIREMENT...: the headers of wheels
  local folder=$1 wheels
  shift
  [[ ! -e $folder/complete ]] || return 0
  printf 'torch-headers: fetching %s\n' "$*" >&2
  wheels=$(mktemp -d)
  "$python" -m pip download -qq --disable-pip-version-check --no-deps --no-cache-dir \
    --dest "$wheels" "$@"
  "$python" - "$wheels" "$folder" <<'PYTHON'
import sys, zipfile
from pathlib import Path
for wheel in Path(sys.argv[1]).glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(sys.argv[2], [n for n in archive.namelist() if "/include/" in n])
PYTHON
  rm -rf "$wheels"
  touch "$folder/complete"
}

unpack $headers/cuda nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88
ln -sfn nvidia/cu13/include $headers/cuda/include
for version in "$@"; do
  unpack "$headers/torch-$version" "torch==$version"
done
