#!/bin/bash
# lm-eval against a running server: lm_eval_client.sh URL CHECKPOINT [GSM8K_FOLDER] [ITEMS]
# A loglikelihood task of its own (choices.yaml), and, where the folder with test.jsonl is given, GSM8K through both
# of its API models. CHECKPOINT is the folder whose tokenizer the client uses. Data sets are read from files.
set -e
url=$1 checkpoint=$2 gsm8k=${3:-} items=${4:-4}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 OPENAI_API_KEY=${M3_API_KEY:-none}
model=$(curl -sS -H "Authorization: Bearer $OPENAI_API_KEY" "$url/v1/models" | python3 -c 'import json,sys; print(json.load(sys.stdin)["data"][0]["id"])')
mkdir "$work/tasks"
cp "$here/choices.jsonl" "$work/"
sed "s|DATA|$work/choices.jsonl|" "$here/choices.yaml" >"$work/tasks/choices.yaml"
tokens="tokenizer_backend=huggingface,tokenizer=$checkpoint"
echo "== loglikelihood through local-completions"
lm_eval --model local-completions --tasks m3_choices --include_path "$work/tasks" \
  --model_args "model=$model,base_url=$url/v1/completions,num_concurrent=4,max_retries=1,$tokens"
[ -n "$gsm8k" ] || exit 0
head -n "$items" "$gsm8k/test.jsonl" >"$work/gsm8k.jsonl"
sed "s|DATA|$work/gsm8k.jsonl|" "$here/gsm8k.yaml" >"$work/tasks/gsm8k.yaml"
echo "== GSM8K, $items items, through local-completions"
lm_eval --model local-completions --tasks m3_gsm8k --include_path "$work/tasks" --gen_kwargs max_gen_toks=64 \
  --model_args "model=$model,base_url=$url/v1/completions,num_concurrent=4,max_retries=1,$tokens"
echo "== GSM8K, $items items, through local-chat-completions"
lm_eval --model local-chat-completions --tasks m3_gsm8k --include_path "$work/tasks" --apply_chat_template \
  --gen_kwargs max_gen_toks=64 \
  --model_args "model=$model,base_url=$url/v1/chat/completions,num_concurrent=4,max_retries=1"
