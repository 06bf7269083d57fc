#!/usr/bin/env bash
# Runs native and compat mode, without a GPU: a CUDA build of torch in an environment of its own,
# several gigabytes that are downloaded once, on the stand-ins for CUDA's libraries.
#
# Usage: scripts/test_cuda.sh PYTHON TORCH VENV [pytest's arguments, or a command after --]
# for example: scripts/test_cuda.sh python3 torch==2.14.1 .venv-cuda -k streams
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly python=$1 torch=$2 venv=$(realpath -m "$3")
shift 3
readonly requirements=requirements/dev.txt alone=requirements/cuda.txt
readonly marker=$venv/.stalloc-setup # what the environment was made from
readonly standin=$PWD/build/cpp/standin/13

say() { printf 'test-cuda: %s\n' "$*" >&2; }

wanted() {
  printf '%s\n' "$python" "$torch"
  cat "$requirements" "$alone"
}

if ! cmp -s "$marker" <(wanted); then
  say "installing $torch with CUDA into $venv (several gigabytes, the first time)"
  [[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check "$torch" -r "$requirements"
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps -r "$alone"
  cuda=$("$venv/bin/python" -c 'import torch; print(torch.version.cuda or "")')
  if [[ -z $cuda ]]; then
    say "$torch is no CUDA build; choose another: make test-cuda CUDA_TORCH=torch==2.14.1"
    exit 1
  fi
  # The headers of CUDA that torch's own wheels lack.
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check "nvidia-cuda-crt==$cuda.*"
  wanted >"$marker"
fi

export PATH=$venv/bin:$PATH
cmake --preset cpp >/dev/null
cmake --build --preset cpp --target standin_cudart13 standin_cuda standin_nvml standin_cublas
python -m pip install -qq --disable-pip-version-check --no-build-isolation --no-deps \
  --config-settings=build-dir=build/cuda --config-settings=cmake.define.STALLOC_WERROR=ON \
  --config-settings=cmake.define.STALLOC_TORCH_PROBE=ON --editable .
export PYTHONPATH=$PWD/build/cuda${PYTHONPATH:+:$PYTHONPATH} # of that module

# In the place of the runtime library that torch would load, having the same soname, and before
# cuBLAS, of which it takes a few functions' place.
export LD_PRELOAD=$standin/libcudart.so.13:$standin/libstandin_cublas.so LD_LIBRARY_PATH=$standin
export STANDIN_DEVICES=${STANDIN_DEVICES:-2} OMP_WAIT_POLICY=passive
if [[ ${1-} == -- ]]; then
  shift
  exec "$@"
fi
exec python -m pytest tests/cuda "$@"
