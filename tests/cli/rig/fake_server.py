"""A server that answers chat requests as a test says, also as no server should. Not a test itself.

    with FakeServer(answer) as s: ... s.port, s.bodies

answer(handler, body) is called for each POST with the request's JSON; sse() below makes its life easier."""
import http.server
import json
import threading
import time


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def cors(self):
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Access-Control-Allow-Headers", "*")
        self.send_header("Access-Control-Expose-Headers", "*")

    def reply(self, status, body, content_type="application/json", **headers):
        data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.cors()
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self, content_type="text/event-stream"):
        self.send_response(200)
        self.cors()
        self.send_header("Content-Type", content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def raw(self, data):
        """One HTTP chunk."""
        data = data if isinstance(data, bytes) else data.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, data):
        self.raw("data: " + (data if isinstance(data, str) else json.dumps(data)) + "\n\n")

    def delta(self, **fields):
        self.event({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})

    def end_stream(self, usage=None, finish="stop"):
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        if usage:
            self.event({"choices": [], "usage": usage})
        self.event("[DONE]")
        self.raw("")

    def say(self, text, reasoning="", piece=7, pause=0.0):
        """A whole answer in pieces."""
        self.begin_stream()
        self.delta(role="assistant", content="")
        n = 0
        for name, whole in (("reasoning_content", reasoning), ("content", text)):
            for i in range(0, len(whole), piece):
                self.delta(**{name: whole[i:i + piece]})
                n += 1
                time.sleep(pause)
        self.end_stream({"prompt_tokens": 5, "completion_tokens": n, "total_tokens": n + 5})

    def do_OPTIONS(self):
        self.reply(204, b"")

    def do_GET(self):
        if self.path == "/v1/models" and self.server.models is not None:
            self.reply(200, {"object": "list", "data": [{"id": m, "object": "model"} for m in self.server.models]})
        else:
            self.server.get(self)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(body)
        except ValueError:
            pass
        self.server.seen.append((self.path, dict(self.headers), body))
        try:
            self.server.answer(self, body)
        except (BrokenPipeError, ConnectionResetError):
            self.server.left += 1
            self.close_connection = True


class FakeServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # five connections at once are more than the default takes

    def __init__(self, answer, models=("fake",), get=lambda h: h.reply(404, {"error": {"message": "no such path"}})):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.models, self.get, self.seen, self.left = answer, models, get, [], 0
        self.port = self.server_address[1]
        self.url = "http://127.0.0.1:%d" % self.port
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, *_):
        pass

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()
