#!/usr/bin/env bash
# Builds the Python package and installs it, editable, into the virtual environment. The first time,
# and when the build itself has changed, by pip; after that Ninja rebuilds what is out of date and
# CMake puts it in place, which costs a fraction of a second when nothing is.
#
# Usage: scripts/build.sh VENV
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly venv=$1
readonly marker=$venv/.stalloc-build # older than what the build depends on: pip has to run again

# build/{cache_tag} is where pyproject.toml has the build be.
read -r build site < <("$venv/bin/python" -c \
  'import sys, sysconfig; print("build/" + sys.implementation.cache_tag, sysconfig.get_path("platlib"))')

is_stale() {
  [[ -e $marker && -e $build/build.ninja ]] || return 0
  local file
  for file in "$venv/.stalloc-setup" pyproject.toml CMakeLists.txt cmake/*; do
    [[ ! $file -nt $marker ]] || return 0
  done
  return 1
}

if is_stale; then
  printf 'build: installing stalloc, editable, into %s\n' "$venv" >&2
  rm -f "$marker"
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check \
    --no-build-isolation --no-deps --config-settings=cmake.define.STALLOC_WERROR=ON --editable .
  touch "$marker"
else
  cmake --build "$build"
  cmake --install "$build" --component stalloc --prefix "$site" >/dev/null
fi
