#!/bin/sh
# scripts/bench.sh: the table of CPU speeds (bench/cpu_table.sh), some four minutes on two idle cores.
# scripts/bench.sh ARGUMENTS...: the micro-benchmarks under bench/; arguments go to Google Benchmark
# (--benchmark_filter=linear).
set -eu
cd "$(dirname "$0")/.."
if [ $# = 0 ]; then
  scripts/install_packages.sh build
  scripts/build.sh release m3
  exec bench/cpu_table.sh build/release/m3
fi
scripts/install_packages.sh build bench
scripts/build.sh bench all
for source in bench/*_bench.cpp; do
  name=$(basename "$source" .cpp)
  echo "== $name"
  "build/bench/bench/$name" "$@"
done
