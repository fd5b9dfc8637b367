#!/bin/sh
# Builds the libFuzzer targets with clang and runs each over its corpus: scripts/fuzz.sh [NAME|all [SECONDS]].
# New inputs and crashes go to build/asan/fuzz/NAME; the committed corpus in tests/fuzz/corpus/NAME is only read.
# The last line counts the targets: "N passed, N failed".
set -eu
cd "$(dirname "$0")/.."
only=${1:-all}
seconds=${2:-60}
scripts/install_packages.sh build test sanitize

names=
for source in tests/fuzz/*_fuzz.cpp; do
  name=$(basename "$source" _fuzz.cpp)
  if [ "$only" = all ] || [ "$only" = "$name" ]; then names="$names $name"; fi
done
if [ -z "$names" ]; then
  echo "m3: no fuzz target '$only'; known:" $(basename -a -s _fuzz.cpp tests/fuzz/*_fuzz.cpp) >&2
  exit 2
fi
scripts/build.sh asan $(printf '%s_fuzz ' $names)

passed=0
failed=0
for name in $names; do
  found=build/asan/fuzz/$name
  mkdir -p "$found"
  if "build/asan/tests/${name}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
      -artifact_prefix="$found/" "$found" "tests/fuzz/corpus/$name" >"$found.log" 2>&1; then
    passed=$((passed + 1))
    echo "$name: $(awk '/stat::number_of_executed_units/ { print $2 }' "$found.log") inputs in $seconds s, none failed"
  else
    failed=$((failed + 1))
    tail -n 40 "$found.log"
    echo "$name: FAILED; the input lies in $found, $found.log has all of it"
  fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
