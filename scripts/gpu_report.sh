#!/bin/sh
# What each kernel of src/ops/cuda takes on a Hopper GPU, as the compiler says: registers, bytes spilled (stores and loads),
# static shared memory, and how many warps its registers allow on a multiprocessor (of 64).
# scripts/gpu_report.sh [FILE...]: of these files, e.g. src/ops/cuda/route.cu.
set -eu
cd "$(dirname "$0")/.."
nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
[ -x "$nvcc" ] || { echo "m3: nvcc was not found" >&2; exit 1; }
[ $# -gt 0 ] || set -- src/ops/cuda/*.cu
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} sh -c '
  "$1" -std=c++20 -O3 -I. -Iinclude -DFMT_HEADER_ONLY -gencode=arch=compute_90a,code=sm_90a -Xptxas -v -c "$2" -o /dev/null \
    2>"$3/$(basename "$2").txt" || { cat "$3/$(basename "$2").txt" >&2; exit 255; }' sh "$nvcc" {} "$reports"
cat "$reports"/*.txt | grep -E 'Compiling entry function|spill stores|Used [0-9]+ registers' | sed "s/.*entry function '\\([^']*\\)'.*/\\1/" |
  c++filt | awk '
  /bytes stack frame/ { split($0, s, /[ ,]+/); for (i in s) { if (s[i] == "spill" && s[i + 1] == "stores") stores = s[i - 1 - 1]; if (s[i] == "spill" && s[i + 1] == "loads") loads = s[i - 1 - 1] } next }
  /Used [0-9]+ registers/ {
    match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5)
    shared = 0
    if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH) + 0
    taken = int((registers + 7) / 8) * 8 * 32
    warps = taken > 0 ? int(65536 / taken) : 64
    if (warps > 64) warps = 64
    name = kernel
    gsub(/m3::ops::cuda::|\(anonymous namespace\)::|^void /, "", name)
    if (!sub(/>\(.*/, ">", name)) sub(/\(.*/, "", name)
    gsub(/\(m3::WeightFormat\)/, "format ", name)
    printf "%9d %7d %7d %7d %6d  %s\n", registers, stores, loads, shared, warps, name
    next
  }
  { kernel = $0; stores = 0; loads = 0 }' | sort -k6 >"$reports/table"
echo "registers  stores   loads  shared  warps  kernel"
cat "$reports/table"
awk '{ count++; if ($2 + $3 > 0) spilling++ } END { printf "%d kernels, %d spill\n", count, spilling }' "$reports/table"
