#!/bin/sh
# Builds and runs every micro-benchmark under bench/; arguments go to Google Benchmark:
# scripts/bench.sh --benchmark_filter=linear
set -eu
cd "$(dirname "$0")/.."
scripts/install_packages.sh build bench
scripts/build.sh bench all
for source in bench/*_bench.cpp; do
  name=$(basename "$source" .cpp)
  echo "== $name"
  "build/bench/bench/$name" "$@"
done
