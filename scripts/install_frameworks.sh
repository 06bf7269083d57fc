#!/usr/bin/env bash
# Installs requirements/frameworks.txt, each section into a folder of its own in the virtual
# environment: frameworks/stable and so on. Costs milliseconds when nothing has changed.
#
# Usage: scripts/install_frameworks.sh VENV
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly venv=$1
readonly requirements=requirements/frameworks.txt
readonly marker=$venv/frameworks/.installed # what was installed

if cmp -s "$marker" "$requirements"; then
  exit 0
fi
rm -f "$marker"
for section in stable newest oldest trainers; do
  folder=$venv/frameworks/$section
  rm -rf "$folder"
  mkdir -p "$folder"
  printf 'setup: installing the %s frameworks into %s\n' "$section" "$folder" >&2
  # The packages name newer Pythons than they need.
  sed -n "/^# $section\$/,/^\$/p" "$requirements" |
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps \
      --ignore-requires-python --target "$folder" --requirement /dev/stdin
done
cp "$requirements" "$marker"
