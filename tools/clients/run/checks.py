"""Runs the checks of one client in its environment, for tools/clients.py: checks.py CLIENT.py REPORT.

REPORT gets a line of JSON for each."""

import contextlib
import http.server
import importlib.metadata
import importlib.util
import inspect
import json
import os
import re
import sys
import threading
import traceback
import unittest
import urllib.error
import urllib.request


class Server:
    url, model, folder = os.environ["GYRE_URL"], os.environ["GYRE_MODEL"], os.environ["GYRE_FOLDER"]
    context = int(os.environ["GYRE_CONTEXT"])
    v1 = url + "/v1"

    tools = os.environ["GYRE_TOOLS_URL"]

    @contextlib.contextmanager
    def script(self, *texts):
        """An address whose model says these texts, one a request; it stands before a server whose template knows
        tools, and asks for the text by structured_outputs.choice. A text of None: whatever the request asks for."""
        left = list(texts)

        class Proxy(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                text = left.pop(0)
                body["chat_template_kwargs"] = {"enable_thinking": False}  # what is asked for comes first
                if text is not None:
                    body["structured_outputs"] = {"choice": [text]}
                ask = urllib.request.Request(Server.tools + self.path, json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
                try:
                    answer = urllib.request.urlopen(ask)
                except urllib.error.HTTPError as e:
                    answer = e
                data = answer.read()
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers["Content-Type"])
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield "http://127.0.0.1:%d/v1" % proxy.server_port
            assert not left, "these texts were not asked for: %r" % left
        finally:
            proxy.shutdown()
            proxy.server_close()

    @staticmethod
    def skip(why):
        raise unittest.SkipTest(why)


def load(path):
    spec = importlib.util.spec_from_file_location("client_" + os.path.splitext(os.path.basename(path))[0], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_check(module, name, value):
    own = inspect.isfunction(value) and value.__module__ == module.__name__ and name[0] != "_"
    return own and next(iter(inspect.signature(value).parameters), None) == "server"


def outcome_of(check):
    try:
        check(Server())
        return "passed", ""
    except unittest.SkipTest as e:
        return "skipped", str(e)
    except BaseException:
        return "failed", traceback.format_exc(limit=-4)


def main(path, report):
    module = load(path)
    with open(report, "w", buffering=1) as out:
        package = re.split("[=<>~\\[]", module.PACKAGES[0])[0]
        out.write(json.dumps({"version": importlib.metadata.version(package)}) + "\n")
        for name, check in list(vars(module).items()):
            if is_check(module, name, check):
                outcome, why = outcome_of(check)
                out.write(json.dumps({"check": name, "outcome": outcome, "why": why}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
