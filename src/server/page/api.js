// The server's API: fetch with the key, errors as one line, and replies as they stream.

const keyName = "m3.key";

export const apiKey = {
  get: () => sessionStorage.getItem(keyName) ?? localStorage.getItem(keyName) ?? "",
  set(key, remember) {
    sessionStorage.removeItem(keyName);
    localStorage.removeItem(keyName);
    if (key !== "") (remember ? localStorage : sessionStorage).setItem(keyName, key);
  },
};

export class RequestError extends Error {
  constructor(message, status, requestId) {
    super(message);
    this.status = status; // 0: no reply at all
    this.requestId = requestId;
  }
}

// Addresses are relative, so that the page also works behind a proxy's prefix.
async function request(path, { body, signal } = {}) {
  const headers = {};
  if (apiKey.get() !== "") headers.Authorization = `Bearer ${apiKey.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let reply;
  try {
    reply = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
    });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new RequestError("The server cannot be reached.", 0);
  }
  if (!reply.ok) throw await errorOf(reply);
  return reply;
}

async function errorOf(reply) {
  let message = `The server answered ${reply.status}.`;
  try {
    message = (await reply.json()).error.message ?? message;
  } catch {
    // a proxy's page, perhaps
  }
  return new RequestError(message, reply.status, reply.headers.get("x-request-id"));
}

export const getJson = async (path) => (await request(path)).json();

// The chunks of a streamed chat completion. Ends after [DONE]; a stream that ends without it was cut.
export async function* streamChat(body, signal) {
  const reply = await request("v1/chat/completions", { body, signal });
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    while (true) {
      let next;
      try {
        next = await reader.read();
      } catch (problem) {
        if (problem.name === "AbortError") throw problem;
        throw new RequestError("The connection broke before the reply was complete.", 0);
      }
      if (next.done) throw new RequestError("The reply ended before it was complete.", 0);
      buffer += next.value;
      let end;
      while ((end = buffer.indexOf("\n\n")) >= 0) {
        const data = dataOf(buffer.slice(0, end));
        buffer = buffer.slice(end + 2);
        if (data === "[DONE]") return;
        if (data === "") continue;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new RequestError(chunk.error.message, reply.status, reply.headers.get("x-request-id"));
        yield chunk;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function dataOf(event) {
  return event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
}
