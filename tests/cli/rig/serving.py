"""A gyre server for the tests of a module: started on a port of its own, stopped at the end. Not a test itself."""
import http.client
import json
import os
import re
import shutil
import subprocess
import threading

from places import ROOT

GYRE = os.environ["GYRE"]
SMALL = "tests/models/llama"  # a trained model whose tokens take a tenth of the story model's time


class Server:
    def __init__(self, model, *flags, env=None):
        path = os.path.join(ROOT, model)
        self.process = subprocess.Popen(
            [GYRE, "serve", path if os.path.exists(path) else model, "--port", "0", "--threads", "1", *flags],
            stderr=subprocess.PIPE, text=True, env=env)
        self.await_port()

    def await_port(self):
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r"listening on https?://[^:]+:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        else:
            raise RuntimeError("the server did not start: " + "".join(self.log))
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def stop(self):
        self.process.terminate()
        code = self.process.wait(timeout=40)
        self.reader.join(timeout=40)  # its last lines are in the log
        self.process.stderr.close()
        return code

    def request(self, method, path, body=None, headers=None, timeout=60):
        """Returns (status, JSON or text)."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        data = body if isinstance(body, (str, bytes)) or body is None else json.dumps(body)
        c.request(method, path, data,
                  dict({"Content-Type": "application/json"} if data is not None else {}, **(headers or {})))
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        try:
            return r.status, json.loads(text)
        except ValueError:
            return r.status, text

    def metric(self, name):
        """The sum of a counter or gauge over its labels."""
        lines = [
            line.rsplit(" ", 1)
            for line in self.request("GET", "/metrics")[1].split("\n")
            if line.startswith((name + "{", name + " "))
        ]
        assert lines, name
        return sum(float(value) for _, value in lines)

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

    def events(self, path, headers=None, **body):
        """A stream of named events: [(event, data)], data JSON where it is."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("POST", path, json.dumps(dict(body, stream=True)),
                  {"Content-Type": "application/json", **(headers or {})})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        assert r.status == 200, text
        events = []
        for block in text.split("\n\n")[:-1]:
            lines = dict(line.split(": ", 1) for line in block.split("\n"))
            if lines["data"] != "[DONE]":
                events.append((lines.get("event"), json.loads(lines["data"])))
        assert text.endswith("\n\n")
        return events


def templated_model(folder, template):
    """A model with a chat template, a text, of its own; Server needs --allow-links for it."""
    model = os.path.join(ROOT, SMALL)
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                 "tokenizer_config.json"):
        os.symlink(os.path.join(model, name), os.path.join(folder, name))
    with open(os.path.join(folder, "chat_template.jinja"), "w") as f:
        f.write(template)
    return folder


def real_template(name):
    with open(os.path.join(ROOT, "tests/data/chat/templates", name + ".jinja")) as f:
        return f.read()


def thinking_model(folder):
    """The story model as one that thinks: its template opens a think block, which its full stop closes."""
    story = os.path.join(ROOT, "models/story")
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json"):
        shutil.copy(os.path.join(story, name), folder)
    with open(os.path.join(story, "chat_template.jinja")) as f:
        template, last, rest = f.read().rpartition("{%- endif %}")
        thought = "('<think>' + message.reasoning_content + '</think>' if message.reasoning_content else '') + "
        template = template.replace("message['content']", thought + "message['content']")
        template += "{%- if enable_thinking is not false %}{{- '<think>\n' }}{%- endif %}" + last + rest
    with open(os.path.join(folder, "chat_template.jinja"), "w") as f:
        f.write(template)
    with open(os.path.join(story, "tokenizer.json")) as f:
        tokenizer = json.load(f)
    model = tokenizer["model"]
    model["vocab"] = {"</think>" if token == "." else token: i for token, i in model["vocab"].items()}
    model["merges"] = [m for m in model["merges"] if "." not in "".join(m)]
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(tokenizer, f)
    return folder
