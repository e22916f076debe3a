"""A gyre server for the tests of a module: started on a port of its own, stopped at the end. Not a test itself."""
import http.client
import json
import os
import re
import subprocess
import threading

GYRE = os.environ["GYRE"]
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Server:
    def __init__(self, model, *flags):
        self.process = subprocess.Popen([GYRE, "serve", os.path.join(ROOT, model), "--port", "0", "--threads", "1", *flags], stderr=subprocess.PIPE, text=True)
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r"listening on https?://[^:]+:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        else:
            raise RuntimeError("the server did not start: " + "".join(self.log))
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()

    def stop(self):
        self.process.terminate()
        code = self.process.wait(timeout=40)
        self.process.stderr.close()
        return code

    def request(self, method, path, body=None, headers=None, timeout=60):
        """Returns (status, JSON or text)."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        data = body if isinstance(body, (str, bytes)) or body is None else json.dumps(body)
        c.request(method, path, data, dict({"Content-Type": "application/json"} if data is not None else {}, **(headers or {})))
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        try:
            return r.status, json.loads(text)
        except ValueError:
            return r.status, text

    def post(self, path, **body):
        return self.request("POST", path, body)

    def stream(self, path, **body):
        """The data of each event, JSON where it is; the last is "[DONE]"."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("POST", path, json.dumps(dict(body, stream=True)), {"Content-Type": "application/json"})
        r = c.getresponse()
        assert r.status == 200, r.read()
        events = [e[len("data: "):] for e in r.read().decode().split("\n\n") if e.startswith("data: ")]
        c.close()
        return [e if e == "[DONE]" else json.loads(e) for e in events]
