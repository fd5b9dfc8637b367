#!/bin/sh
# The table of CPU speeds at MiniMax-M3's layer widths, each beside the limit measured in the same run, and at the end
# what is asked for beside what was measured: bench/cpu_table.sh M3_PROGRAM [CONFIG]
#   LAYERS (2), EXPERTS (16)  what the model is cut to: 7.5 GB of bf16 weights; 3 layers are 9.9 GB
#   LONG_LAYERS (4)           the same for the row of 256K context: 12 GB, one dense layer beside three sparse ones
#   REPEATS (5)               timed passes, of which the median counts
#   THREADS                   numbers of threads for the scaling rows, "1 4 8"; default: 1 and all cores
#   ISAS                      instruction sets, "avx512 avx2"; default: what this machine has, the best first
set -eu
m3=$1
config=${2:-$(dirname "$0")/../tests/fuzz/corpus/config/published.json}
layers=${LAYERS:-2}
experts=${EXPERTS:-16}
repeats=${REPEATS:-5}
cores=$(nproc)
threads=${THREADS:-$(if [ "$cores" -gt 1 ]; then echo 1 "$cores"; else echo 1; fi)}
if [ -z "${ISAS:-}" ]; then
  ISAS=avx2
  if grep -qm1 avx512_bf16 /proc/cpuinfo && grep -qm1 avx512_*vbmi /proc/cpuinfo; then ISAS="avx512 avx2"; fi
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT

bench() {
  echo "--- m3 bench $*"
  "$m3" bench --random-config "$config" --layers "$layers" --experts "$experts" --repeats "$repeats" "$@" 2>&1
}
join() { echo "$*" | tr ' ' ,; }

echo "$(date -u '+%Y-%m-%d %H:%M UTC'), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $cores cores, load $(cut -d ' ' -f 1 /proc/loadavg)"
{
  isas=$(join $ISAS)
  bench --isa "$isas" --format bf16 --batch 1,8,32 --context 0
  bench --isa "$isas" --format mxfp8 --batch 1,8,32 --context 0 --prompt 0
  bench --isa "$isas" --format mxfp4 --batch 1,8,32 --context 0 --prompt 0
  bench --isa "$isas" --format nvfp4 --batch 1 --context 0 --prompt 0
  bench --isa "${ISAS%% *}" --format fp8 --batch 1 --context 0 --prompt 0
  layers=${LONG_LAYERS:-4}
  bench --isa "${ISAS%% *}" --format bf16 --batch 1 --context 8192,262144 --prompt 0
  layers=${LAYERS:-2}
  bench --isa "${ISAS%% *}" --format bf16 --batch 1 --context 0 --prompt 128 --scaling "$(join $threads)"
} | tee "$log"

awk '
  function asked(label, value, bound) {
    printf "%-44s %8s %8s   %s\n", label, bound "%", value "%", (value >= bound ? "reached" : "MISSED")
  }
  /^--- / { format = ""; for (i = 1; i < NF; ++i) if ($i == "--format") format = $(i + 1); scaling = /--scaling/ }
  /^cpu \(/ { isa = $2; gsub(/[(,]/, "", isa); threads = $3; sparse = gsub(/S/, "S", $7) }
  /^limits / { read = $5 }
  $1 == "decode" && !scaling {
    share = $7 + 0; peak = $9 + 0
    if ($2 == 1 && $3 == 0) {
      if (format == "bf16" || format == "mxfp8") lines[++n] = isa " decode " format ", of read|" share "|70"
      else if (format == "mxfp4") lines[++n] = isa " decode " format ", of read|" share "|" (isa == "AVX2" ? 45 : 60)
      else lines[++n] = isa " decode " format ", of read|" share "|"
    }
    if ($2 == 32 && $3 == 0) lines[++n] = isa " batch 32 " format ", of peak|" peak "|" (format == "bf16" ? 35 : "")
    if ($2 == 8 && $3 == 0) lines[++n] = isa " batch 8 " format ", of read / of peak|" share " / " peak "|"
    if ($3 == 8192) { at8k = $5 }
    if ($3 == 262144) { allowed = 1.5 * at8k + sparse * 262144 * 256 / read / 1e6; long_context = $5; long_isa = isa }
  }
  $1 == "prefill" && !scaling { lines[++n] = isa " prefill 512 " format ", of peak|" ($9 + 0) "|45" }
  scaling && $1 == "decode" { scale[++s] = threads " threads: decode " $4 " tokens/s, " $7 " of read" before }
  scaling && $1 == "prefill" { before = "; prefill 128 " $4 " tokens/s, " $9 " of peak" }
  END {
    printf "%-44s %8s %8s\n", "share of a limit of the same run", "asked", "measured"
    for (i = 1; i <= n; ++i) {
      split(lines[i], part, "|")
      if (part[3] == "") printf "%-44s %8s %8s\n", part[1], "", part[2] "%"
      else asked(part[1], part[2], part[3])
    }
    if (long_context) printf "%-44s %5.1f ms %5.1f ms   %s\n", long_isa " decode at 256K context (8K: " at8k " ms)", allowed, long_context, (long_context <= allowed ? "reached" : "MISSED")
    for (i = 1; i <= s; ++i) print scale[i]
  }' "$log"
