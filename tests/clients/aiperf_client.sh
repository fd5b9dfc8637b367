#!/bin/bash
# AIPerf, the benchmark client that serving comparisons use, against a running server, beside `m3 bench serve` with the
# same load: aiperf_client.sh URL CHECKPOINT M3
# (vLLM's own `vllm bench serve` comes only with all of vllm, and guidellm with all of torch.) It has 141 packages of
# 1.2 GB, in build/aiperf-venv; where they cannot be had, a line says so and nothing fails.
set -u
unset HF_HUB_OFFLINE  # with it, no folder is taken as a tokenizer
url=$1 checkpoint=$2 m3=$3
root=$(cd "$(dirname "$0")/../.." && pwd)
venv=${M3_AIPERF_VENV:-$root/build/aiperf-venv}
if ! [ -x "$venv/bin/aiperf" ]; then
  echo "installing aiperf into $venv (1.2 GB, some minutes)"
  python3 -m venv "$venv" && "$venv/bin/pip" install -q 'aiperf>=0.13' ||
    { echo "skipped: aiperf cannot be installed here"; rm -rf "$venv"; exit 0; }
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
key=${M3_API_KEY:-none}
model=$(curl -sS -H "Authorization: Bearer $key" "$url/v1/models" | python3 -c 'import json,sys; print(json.load(sys.stdin)["data"][0]["id"])')
worst=0
for api in completions chat; do
  if ! "$venv/bin/aiperf" profile --model "$model" --url "$url" --api-key "$key" --endpoint-type "$api" --streaming \
    --tokenizer "$checkpoint" --use-server-token-count --concurrency 8 --request-count 64 --random-seed 1 \
    --synthetic-input-tokens-mean 64 --output-tokens-mean 32 --extra-inputs ignore_eos:true --workers-max 2 --ui none \
    --output-artifact-dir "$work/$api" >"$work/log" 2>&1; then
    tail -n 30 "$work/log"
    echo "FAILED  aiperf, $api"
    worst=1
    continue
  fi
  python3 - "$work/$api/profile_export_aiperf.json" "$api" <<'PYTHON' || worst=1
import json, sys
run = json.load(open(sys.argv[1]))
lengths = run["output_sequence_length"]
whole = run["completed_request_count"]["avg"] == 64 and run["request_error_rate"]["avg"] == 0 and not run["error_summary"]
exact = lengths["min"] == lengths["max"] == 32
for name in ("time_to_first_token", "inter_token_latency", "request_latency"):
    print(f"  {name} in ms: " + ", ".join(f"{p} {run[name][p]:.1f}" for p in ("avg", "p50", "p90", "p99")))
print(f"  {run['output_token_throughput']['avg']:.1f} tokens/s")
print(f"{'ok     ' if whole and exact else 'FAILED '} aiperf, {sys.argv[2]}: {run['completed_request_count']['avg']:.0f} "
      f"requests, {lengths['min']:.0f} to {lengths['max']:.0f} tokens each, {len(run['error_summary'])} kinds of error")
sys.exit(0 if whole and exact else 1)
PYTHON
  path=/v1/completions
  [ $api = completions ] || path=/v1/chat/completions
  "$m3" bench serve --base-url "$url" --endpoint $path --num-prompts 64 --max-concurrency 8 --random-input-len 64 \
    --random-output-len 32 --ignore-eos || worst=1
done
exit $worst
