#!/usr/bin/env bash
# Counts the instructions of one decision, which no busy machine changes, and compares them with decide.txt.
# `decide.sh PROGRAM` fails where one is more than 10 % away; `decide.sh PROGRAM --write` writes decide.txt anew.
# Without valgrind nothing is counted: that is said, and with STOWAGE_VALGRIND=required, as in .ci/run, an error.
set -euo pipefail
here="$(dirname "${BASH_SOURCE[0]}")"
program="$1"
runs=1000

if [[ "$(uname -m)" != x86_64 ]]; then
  echo "==> bench-decide skipped: the committed counts are of x86_64, this is $(uname -m)"
  exit 0
fi
if ! command -v valgrind >/dev/null; then
  if [[ "${STOWAGE_VALGRIND:-}" == required || "${2:-}" == --write ]]; then
    echo "==> bench-decide: valgrind is not installed, so instructions of a decision cannot be counted" >&2
    exit 1
  fi
  echo "==> bench-decide skipped: valgrind is not installed, so instructions of a decision were not counted"
  exit 0
fi

count() {
  local output
  output="$(valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*measured_case*' \
    "$program" "$1" 2>&1)" || { echo "$output" >&2; return 1; }
  awk -v runs="$runs" '/Collected *: / {print int($NF / runs); found = 1} END {exit !found}' <<<"$output"
}

counted=""
for name in accept refuse plain score prepare; do
  counted+="$name $(count "$name")"$'\n'
done
if [[ "${2:-}" == --write ]]; then
  { sed -n '/^#/p' "$here/decide.txt"; printf '%s' "$counted"; } >"$here/decide.new"
  mv "$here/decide.new" "$here/decide.txt"
fi

wrong=0
while read -r name now; do
  pinned="$(awk -v name="$name" '$1 == name {print $2}' "$here/decide.txt")"
  verdict=ok
  if [[ -z "$pinned" ]] || ((now * 10 > pinned * 11 || now * 10 < pinned * 9)); then
    verdict="more than 10 % away"
    wrong=1
  fi
  printf '{"bench":"decide","case":"%s","instructions":%d,"pinned":%d}\n' "$name" "$now" "${pinned:-0}"
  echo "    $name: $now instructions, pinned ${pinned:-nothing}: $verdict" >&2
done <<<"${counted%$'\n'}"
if ((wrong)); then
  echo "==> bench-decide: a decision costs another number of instructions; where that is meant: make bench-decide WRITE=1" >&2
  exit 1
fi
