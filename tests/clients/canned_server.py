"""A server for tests of the page: the page comes from a running m3 server, or from its source folder; what the model
would say is canned, chosen by the last message's first word."""
import json
import pathlib
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "src/server/page"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
         ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
          "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")

MARKDOWN = """# A heading with `code`

A paragraph with **bold**, *italic*, ~~gone~~ and a [link](https://example.org/a_(b)).
The second line of it, and a bare address: https://example.org/path?q=1.

1. first
2. second
   - nested *deeper*
   - and `inline | code`
3. third

> A quote
> > within a quote

| name | value | note |
|:-----|------:|:----:|
| alpha | 1.5 | ok |
| beta | 22.75 | a \\| pipe |

---

```cpp
template <typename T>
T twice(T value) { return value + value; }  // <b>not bold</b>
```

snake_case_stays and 2 * 3 * 4 too. Done \\*escaped\\*."""

ATTACK = """<script>window.hacked = 1</script>
<img src=x onerror="window.hacked = 2">

[click](javascript:window.hacked=3) and [data](data:text/html,<script>window.hacked=4</script>)

![picture](https://example.org/tracker.png) <a href="javascript:alert(1)">x</a>

<iframe srcdoc="<script>parent.hacked = 5</script>"></iframe>

```html"><img src=x onerror=window.hacked=6>
</code><script>window.hacked = 7</script>
```

[a]( javascript:window.hacked=8 ) | <svg/onload=window.hacked=9>
"""

TOOL_CALLS = [("get_weather", '{"city": "Lisbon", "days": 3, "units": "metric"}'), ("get_time", '{"zone": "UTC"}')]


def pieces(text, size):
    return [text[i:i + size] for i in range(0, len(text), size)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream = None
    key = None
    sees = True
    loading_until = 0.0
    generated = 1000
    requests = []

    def log_message(self, *arguments):
        pass

    def reply(self, status, body, content_type="application/json", headers=None):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def json(self, value, status=200):
        self.reply(status, json.dumps(value).encode(), headers={"x-request-id": "canned-1"})

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/page/state":
            return self.state()
        if path == "/v1/models":
            return self.json({"data": [{"id": "canned"}, {"id": "canned-two"}]})
        if self.upstream:
            with urllib.request.urlopen(self.upstream + path) as reply:
                headers = {name: value for name, value in reply.headers.items()
                           if name.lower() in ("content-security-policy", "x-content-type-options", "referrer-policy")}
                return self.reply(200, reply.read(), reply.headers["Content-Type"], headers)
        file = FOLDER / ("index.html" if path == "/" else path.removeprefix("/page/"))
        if not file.is_file():
            return self.json({"error": {"message": "no such path"}}, 404)
        self.reply(200, file.read_bytes(), TYPES[file.suffix], {"Content-Security-Policy": POLICY})

    def refused(self):
        if self.key and self.headers.get("Authorization") != f"Bearer {self.key}":
            self.json({"error": {"message": "no valid API key"}}, 401)
            return True
        return False

    def state(self):
        if self.refused():
            return None
        if time.time() < Handler.loading_until:
            return self.json({"status": "loading"})
        Handler.generated += 37
        self.json({"status": "ready", "model": "canned", "backend": "cpu (AVX2, 2 threads)", "max_model_len": 262144,
                   "chat": True, "images": Handler.sees, "videos": Handler.sees,
                   **({} if Handler.sees else {"no_pictures": "this model takes no pictures: it is canned"}), "running": 2, "waiting": 1, "cache_pages": 2048, "cache_pages_used": 700,
                   "prompt_tokens": 5000, "generated_tokens": Handler.generated})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return
        Handler.requests.append(body)
        last = body["messages"][-1]
        text = last["content"] or ""
        if isinstance(text, list):
            text = "".join(part.get("text", "") for part in text) or "nothing"
        word = text.split()[0] if last["role"] == "user" else "answered"
        if word == "error":
            return self.json({"error": {"message": "temperature: 9 is out of range; give a number from 0 to 2"}}, 400)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("x-request-id", "canned-2")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self.stream(word)
        except (BrokenPipeError, ConnectionResetError):
            Handler.requests.append("gone")
            self.close_connection = True

    def stream(self, word):
        if word == "think":
            for piece in pieces("The user wants a short answer. First I look at what was asked, then I weigh it. " * 4, 9):
                self.delta({"reasoning_content": piece}, 0.01)
            for piece in pieces("Forty-two, **most likely**.", 6):
                self.delta({"content": piece})
            self.close_reply("stop", 90)
        elif word == "tools":
            self.delta({"content": "I will look that up."})
            for index, (name, arguments) in enumerate(TOOL_CALLS):
                call = {"index": index, "id": f"call_{index}", "type": "function",
                        "function": {"name": name, "arguments": ""}}
                self.delta({"tool_calls": [call]})
                for piece in pieces(arguments, 8):
                    self.delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            self.close_reply("tool_calls", 40)
        elif word == "endless":
            for number in range(100000):
                self.delta({"content": f"line {number}\n"}, 0.02)
        elif word == "cut":
            self.delta({"content": "This ends ear"}, 0.5)  # a browser drops text that it has not read when an error comes
            self.close_connection = True  # without the closing chunk
        elif word == "heavy":
            for text in ("[" * 20000, "*a " * 20000, "`" * 9999 + "x", "> " * 5000, "- " * 3000, "_a*b" * 8000,
                         "|a" * 5000 + "\n" + "|-" * 5000, "[a](" * 8000):
                self.delta({"content": text + "\n\n"})
            self.close_reply("stop", 5)
        else:
            text = {"markdown": MARKDOWN, "attack": ATTACK, "answered": "It is **sunny** in Lisbon."}.get(
                word, "A plain answer.")
            for piece in pieces(text, 11):
                self.delta({"content": piece})
            self.close_reply("length" if word == "long" else "stop", len(text) // 4)

    def chunk(self, text):
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def delta(self, delta, wait=0.002, finish=None):
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        self.chunk(f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n")
        time.sleep(wait)

    def close_reply(self, reason, tokens):
        self.delta({}, finish=reason)
        usage = {"prompt_tokens": 200, "completion_tokens": tokens, "total_tokens": 200 + tokens,
                 "prompt_tokens_details": {"cached_tokens": 128}}
        self.chunk(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n")
        self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")


def start(upstream=None):
    Handler.upstream = upstream
    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)
