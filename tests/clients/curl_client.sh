#!/bin/bash
# curl against a running server: curl_client.sh URL [KEY]. Says of each check whether it held.
url=$1 key=${2:-none} failed=0
ask() { curl -sS --max-time 120 -H "Authorization: Bearer $key" "$@"; }
expect() { # NAME PATTERN TEXT
  if grep -qE -- "$2" <<<"$3"; then echo "ok      $1"; else echo "FAILED  $1: ${3:0:300}"; failed=1; fi
}
json='Content-Type: application/json'
hello='{"role": "user", "content": "Hello"}'
expect health '"ready"' "$(ask "$url/health")"
expect models '"object":"list"' "$(ask "$url/v1/models")"
expect page '<!doctype html>' "$(ask "$url/")"
expect page_policy "default-src 'none'" "$(ask -I "$url/")"
expect chat '"finish_reason":"(stop|length)"' \
  "$(ask "$url/v1/chat/completions" -H "$json" -d "{\"messages\": [$hello], \"max_tokens\": 16}")"
expect chat_stream '^data: \[DONE\]' \
  "$(ask -N "$url/v1/chat/completions" -H "$json" -d "{\"messages\": [$hello], \"max_tokens\": 16, \"stream\": true}")"
expect completions '"object":"text_completion"' \
  "$(ask "$url/v1/completions" -H "$json" -d '{"prompt": "The sea", "max_tokens": 8}')"
expect messages '"stop_reason":"(end_turn|max_tokens)"' \
  "$(curl -sS -H "x-api-key: $key" -H 'anthropic-version: 2023-06-01' "$url/v1/messages" -d "{\"messages\": [$hello], \"max_tokens\": 16}")"
expect messages_stream '^event: message_stop' \
  "$(ask -N "$url/v1/messages" -d "{\"messages\": [$hello], \"max_tokens\": 16, \"stream\": true}")"
expect responses '"object":"response"' "$(ask "$url/v1/responses" -d '{"input": "Hello", "max_output_tokens": 16}')"
expect responses_stream '^event: response\.(completed|incomplete)' \
  "$(ask -N "$url/v1/responses" -d '{"input": "Hello", "max_output_tokens": 16, "stream": true}')"
expect request_id '^[Xx]-[Rr]equest-[Ii]d: mine-1' "$(ask -D - -o /dev/null -H 'x-request-id: mine-1' "$url/health")"
expect bad_json '"invalid_request_error"' "$(ask "$url/v1/chat/completions" -d '{')"
expect bad_field '"param":"temperature"' \
  "$(ask "$url/v1/chat/completions" -d "{\"messages\": [$hello], \"temperature\": 9}")"
expect no_path '404' "$(ask -o /dev/null -w '%{http_code}' "$url/nothing")"
expect metrics 'm3:num_requests_running' "$(ask "$url/metrics")"
exit $failed
