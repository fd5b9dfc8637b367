#!/bin/sh
# What each kernel of src/ops/cuda takes on a Hopper GPU, as the compiler says: registers, bytes spilled (stores and loads),
# static shared memory, and how many warps its registers allow on a multiprocessor (of 64).
# scripts/gpu_report.sh [FILE...]: of these files, e.g. src/ops/cuda/route.cu.
# Fails where a kernel of a file *_sm90*.cu spills: those are the hot ones, and a spill there is a mistake. Known ones, up to
# so many bytes stored and loaded, are told and let pass: a kernel, a tab, the bytes, on a line each.
# GPU_REPORTS=FOLDER keeps what the compiler said of each file there, and reads it instead of compiling again.
set -eu
known='select_blocks_lists_sm90<false, 4, 1>	124'
cd "$(dirname "$0")/.."
nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
[ $# -gt 0 ] || set -- src/ops/cuda/*.cu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
reports=${GPU_REPORTS:-$work}
mkdir -p "$reports"
for file in "$@"; do
  [ -f "$reports/$(basename "$file").txt" ] || echo "$file"
done >"$work/missing"
if [ -s "$work/missing" ]; then
  [ -x "$nvcc" ] || { echo "m3: nvcc was not found: install CUDA 13.0 or newer, or set CUDA_HOME to where it is" >&2; exit 1; }
  xargs -P "$(nproc)" -I{} sh -c '
    report=$3/$(basename "$2").txt
    nice "$1" -std=c++20 -O3 -I. -Iinclude -DFMT_HEADER_ONLY -gencode=arch=compute_90a,code=sm_90a -Xptxas -v -c "$2" \
      -o /dev/null 2>"$report.part" && mv "$report.part" "$report" || { cat "$report.part" >&2; exit 255; }' \
    sh "$nvcc" {} "$reports" <"$work/missing"
fi
for file in "$@"; do
  grep -E 'Compiling entry function|spill stores|Used [0-9]+ registers' "$reports/$(basename "$file").txt" |
    sed "s/.*entry function '\\([^']*\\)'.*/\\1/" | c++filt | awk -v file="$file" -v spills="$work/spills" -v known="$known" '
  BEGIN { lines = split(known, line, "\n"); for (i = 1; i <= lines; ++i) { split(line[i], part, "\t"); most[part[1]] = part[2] } }
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
    if (stores + loads > 0) {
      note = name in most && stores + loads <= most[name] ? " (known)" : ""
      printf "%s: %s: %d bytes stored, %d loaded%s\n", file, name, stores, loads, note >>spills
    }
    next
  }
  { kernel = $0; stores = 0; loads = 0 }' || true # a file without kernels
done | sort -k6 >"$work/table"
touch "$work/spills"
echo "registers  stores   loads  shared  warps  kernel"
cat "$work/table"
echo "$(wc -l <"$work/table") kernels, $(wc -l <"$work/spills") spill"
grep '_sm90[a-z0-9_]*\.cu:' "$work/spills" | sed 's/^/m3: spills: /' >&2 || true
if grep '_sm90[a-z0-9_]*\.cu:' "$work/spills" | grep -v ' (known)$' >"$work/hot"; then
  echo "m3: $(wc -l <"$work/hot") kernels of Hopper's own files spill registers to memory" >&2
  exit 1
fi
