"""How long a short prompt waits for its first token while a long one is computed.

    long_prompt.py --url http://localhost:8000 [--tokens 32000] [--key KEY]

Standard library only. Prints medians and the worst: short prompts alone, and beside one prompt of --tokens tokens, of
which the server must take at least as many (--max-model-len). Fails where a short one waits for the long one's end.
"""
import argparse
import http.client
import json
import os
import random
import statistics
import threading
import time
import urllib.parse

parser = argparse.ArgumentParser()
parser.add_argument("--url", required=True)
parser.add_argument("--key", default=os.environ.get("M3_API_KEY", ""))
parser.add_argument("--tokens", type=int, default=32000)
parser.add_argument("--short-tokens", type=int, default=16)
options = parser.parse_args()
address = urllib.parse.urlparse(options.url)
draw = random.Random(3)


def first_token(count):
    """Seconds from the request to its one token; the prompt is new every time."""
    prompt = [draw.randrange(256, 1000) for _ in range(count)]
    body = json.dumps({"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "temperature": 0})
    connection = http.client.HTTPConnection(address.hostname, address.port or 80, timeout=3600)
    start = time.monotonic()
    connection.request("POST", "/v1/completions", body,
                       {"Content-Type": "application/json", "Authorization": "Bearer " + options.key})
    reply = connection.getresponse()
    text = reply.read()
    if reply.status != 200:
        raise SystemExit(f"status {reply.status}: {text[:300]}")
    return time.monotonic() - start


def show(name, seconds):
    print(f"{name}: {len(seconds)} short prompts, first token after {1000 * statistics.median(seconds):.0f} ms "
          f"(median), {1000 * max(seconds):.0f} ms (worst)")


alone = [first_token(options.short_tokens) for _ in range(15)]
show("alone", alone)
took = []
long_one = threading.Thread(target=lambda: took.append(first_token(options.tokens)))
long_one.start()
time.sleep(0.2)
beside = []
while long_one.is_alive():
    beside.append(first_token(options.short_tokens))
    time.sleep(0.05)
show(f"beside a prompt of {options.tokens} tokens, which took {took[0]:.1f} s", beside[:-1] or beside)
if max(beside) > took[0] / 4:
    raise SystemExit("a short prompt waited for a good part of the long one")
