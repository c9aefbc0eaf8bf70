// Requests to the server of this page; nothing else is ever asked for.

// An answer that says what went wrong and what to do.
export class ServerError extends Error {
  constructor(message, fix) {
    super(message);
    this.fix = fix;
  }
}

async function readError(response) {
  let body = null;
  try {
    body = await response.json();
  } catch {
    return new ServerError(`HTTP ${response.status}`, "");
  }
  const error = body.error ?? body.detail ?? body;
  if (typeof error === "string") return new ServerError(error, body.fix ?? "");
  return new ServerError(error.what ?? error.message ?? `HTTP ${response.status}`, error.fix ?? body.fix ?? "");
}

export async function getJson(path, signal) {
  const response = await fetch(path, { signal });
  if (!response.ok) throw await readError(response);
  return response.json();
}

export async function postJson(path, body, signal) {
  const response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
  if (!response.ok) throw await readError(response);
  return response.json();
}

// Yield the events of a stream (server-sent events) as objects, until it ends or the signal aborts it.
export async function* streamEvents(path, body, signal) {
  const response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
  if (!response.ok) throw await readError(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      waiting += value.replace(/\r\n/g, "\n");
      let end;
      while ((end = waiting.indexOf("\n\n")) >= 0) {
        const event = waiting.slice(0, end);
        waiting = waiting.slice(end + 2);
        const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
        if (!data || data === "[DONE]") continue;
        const found = JSON.parse(data);
        if (found.error) throw new ServerError(found.error.what ?? found.error.message ?? String(found.error), found.error.fix ?? "");
        yield found;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
