#!/usr/bin/env bash
# Makes the virtual environment that builds, tests and runs stalloc: system packages where they are
# missing and may be installed, then torch and the pinned tools. Costs milliseconds when nothing
# has changed since it last ran.
#
# Usage: scripts/setup.sh PYTHON TORCH VENV, for example: scripts/setup.sh python3 torch==2.13.0 .venv
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly python=$1 torch=$2 venv=$3
readonly requirements=(requirements/dev.txt requirements/docs.txt)
readonly marker=$venv/.stalloc-setup # what the environment was made from

say() { printf 'setup: %s\n' "$*" >&2; }
die() {
  say "$@"
  exit 1
}

wanted() {
  printf '%s\n' "$python" "$torch"
  cat "${requirements[@]}"
}

if [[ -x $venv/bin/python ]] && cmp -s "$marker" <(wanted); then
  exit 0
fi

if command -v "$python" >/dev/null; then
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    die "stalloc needs Python 3.10 or newer, and $python is $("$python" --version 2>&1)." \
      "Choose another: make PYTHON=python3.11"
elif [[ $python != python3 ]]; then
  die "there is no $python. Choose another: make PYTHON=python3"
fi

# --- system packages -----------------------------------------------------------------------------

has_header() { c++ -x c++ -std=c++20 -E - <<<"#include <$1>" >/dev/null 2>&1; }

# One Debian package name a line. Looks for what the packages hold, not for the packages, so that
# it is right on other systems too.
missing_packages() {
  if ! command -v c++ >/dev/null; then
    printf '%s\n' g++ libsimdjson-dev libgtest-dev libbenchmark-dev
  else
    has_header simdjson.h || echo libsimdjson-dev
    has_header gtest/gtest.h || echo libgtest-dev
    has_header benchmark/benchmark.h || echo libbenchmark-dev
  fi
  if ! command -v "$python" >/dev/null; then
    printf '%s\n' python3 python3-venv python3-dev
    return
  fi
  "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
  local include
  include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  [[ -e $include/Python.h ]] || echo python3-dev
}

install_packages() {
  local -a as_root=()
  if [[ $EUID -ne 0 ]]; then
    sudo -n true 2>/dev/null || return 1
    as_root=(sudo -n)
  fi
  command -v apt-get >/dev/null || return 1
  say "installing system packages: $*"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "$@" >&2
}

mapfile -t missing < <(missing_packages)
if ((${#missing[@]})); then
  # ccache is not needed, but saves minutes.
  install_packages "${missing[@]}" ccache || install_packages "${missing[@]}" ||
    die "these system packages are missing (by their Debian names): ${missing[*]}." \
      "Install them, then run make again."
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]} == 0)) ||
    die "still missing after installing: ${missing[*]}. If $python is not the system's own Python," \
      "choose another: make PYTHON=/usr/bin/python3"
fi

# Needed by the tests of reports and the documentation's pictures alone: all else works without.
missing_browser() {
  command -v chromium >/dev/null || echo chromium
  command -v chromedriver >/dev/null || echo chromium-driver
}

mapfile -t missing < <(missing_browser)
if ((${#missing[@]})); then
  install_packages "${missing[@]}" ||
    say "the tests of reports need a browser (by its Debian names): ${missing[*]}. Install it" \
      "before 'make test'; nothing else needs it."
fi

# --- the virtual environment ---------------------------------------------------------------------

# The version of an environment that pip can install into; nothing for any other.
version_of() {
  "$1" -c 'import pip, sys; print(*sys.version_info[:2], sep=".")' 2>/dev/null || true
}

version=$("$python" -c 'import sys; print(*sys.version_info[:2], sep=".")')
if [[ $(version_of "$venv/bin/python") != "$version" ]]; then
  if [[ -e $venv ]]; then
    [[ -e $marker ]] ||
      die "$venv exists, is no virtual environment of Python $version, and was not made here." \
        "Move it away, or choose another place: make VENV=..."
    say "making $venv anew, for Python $version"
    rm -rf "$venv"
  fi
  mkdir -p "$venv"
  touch "$marker" # ours from now on, even if what follows is interrupted
  "$python" -m venv "$venv"
fi
: >"$marker"
say "installing $torch and ${requirements[*]} into $venv (a few minutes the first time)"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check "$torch" \
  "${requirements[@]/#/-r}"
wanted >"$marker"
