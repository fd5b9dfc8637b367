#!/bin/bash
# Real clients against `m3 serve`: tests/clients/run.sh [--gsm8k FOLDER] [--model CHECKPOINT] [PART ...]
# FOLDER (or $M3_GSM8K) holds GSM8K's test.jsonl; lm-eval reads it from there.
# Parts: curl openai anthropic page lm-eval bench aiperf, all of them where none is named; and long-prompt, which takes
# minutes. Needs PyPI, and for the page Debian's chromium and chromium-driver. Prints every check; the exit code is that
# of the worst.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
m3=$root/build/release/m3 model= gsm8k=${M3_GSM8K:-} parts=()
while [ $# -gt 0 ]; do
  case $1 in
    --gsm8k) gsm8k=$2; shift 2 ;;
    --model) model=$2; shift 2 ;;
    *) parts+=("$1"); shift ;;
  esac
done
case " ${parts[*]} " in *" long-prompt "*) context=32768 ;; esac
[ ${#parts[@]} -gt 0 ] || parts=(curl openai anthropic page lm-eval bench aiperf)
[ -x "$m3" ] || { echo "build/release/m3 is missing: run make build"; exit 2; }

venv=$root/build/clients-venv
if ! [ -e "$venv/complete" ] || [ "$root/tests/clients/requirements.txt" -nt "$venv/complete" ]; then
  echo "installing the clients into build/clients-venv"
  python3 -m venv "$venv" && "$venv/bin/pip" install -q -r "$root/tests/clients/requirements.txt" && touch "$venv/complete" || exit 2
fi
export PATH=$venv/bin:$PATH M3_API_KEY=key-of-the-client-tests

log=$(mktemp)
"$m3" serve ${model:+"$model"} --host 127.0.0.1 --port 0 --max-model-len "${context:-8k}" 2>"$log" &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null; rm -f "$log"' EXIT
url=
for _ in $(seq 1200); do
  url=$(sed -n 's/^m3: ready at //p' "$log")
  [ -n "$url" ] && break
  kill -0 $server 2>/dev/null || { cat "$log"; exit 1; }
  sleep 0.1
done
[ -n "$url" ] || { echo "the server did not become ready"; cat "$log"; exit 1; }

cd "$root/tests/clients"
checkpoint=${model:-$root/models/m3-tiny-chat}
worst=0
for part in "${parts[@]}"; do
  echo "=== $part"
  case $part in
    curl) ./curl_client.sh "$url" "$M3_API_KEY" ;;
    openai) python openai_client.py --url "$url" ;;
    anthropic) python anthropic_client.py --url "$url" ;;
    page) python page_test.py --upstream "$url" --key "$M3_API_KEY" --screenshots "$root/build/page-screenshots" ;;
    lm-eval) ./lm_eval_client.sh "$url" "$checkpoint" ${gsm8k:+"$gsm8k"} ;;
    bench)
      "$m3" bench serve --base-url "$url" --dataset-name sharegpt --num-prompts 64 --max-concurrency 16 &&
        "$m3" bench serve --base-url "$url" --endpoint /v1/chat/completions --num-prompts 32 --request-rate 8 \
          --random-input-len 64 --random-output-len 32 ;;
    aiperf) ./aiperf_client.sh "$url" "$checkpoint" "$m3" ;;
    long-prompt) python long_prompt.py --url "$url" ;;
    *) echo "unknown part '$part'"; false ;;
  esac
  code=$?
  [ $code -le $worst ] || worst=$code
done
kill -0 $server 2>/dev/null || { echo "FAILED  the server ended"; worst=1; }
exit $worst
