"""A hub on loopback that holds repositories of files in memory, and misbehaves as a test says. Not a test itself.

    with Hub({"org/name": {"config.json": b"...", ...}}) as hub: hub.url, hub.asked

Faults, each a field that a test sets: `ranges` False (every answer is the whole file), `cut` (after how many bytes of a
file's answer the connection breaks; None: never), `cuts` (how often), `pace` (bytes a second), `status` (of the next
requests for files), `lie` (what is done to the bytes of a file), `elsewhere` (files are redirected to another host, as
the hub's are), `gated` and `private`."""
import hashlib
import http.server
import json
import re
import threading
import time

BIG = 4096  # from here on a file lies in large file storage


def sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, data=b"", **headers):
        data = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        hub = self.server.hub
        with hub.lock:
            hub.asked.append((self.path, self.headers.get("Range"), self.headers.get("Authorization"),
                              self.headers.get("Host")))
        if m := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^?]+)\?blobs=true", self.path):
            return self.listing(hub, m[1], m[2])
        if m := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path):
            return self.file(hub, m[1], m[3])
        if m := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", self.path):
            return self.give(hub, hub.repos[m[1]][m[2]])
        self.reply(404, {"error": "nothing is here"})

    def listing(self, hub, repo, revision):
        if hub.renamed.get(repo):
            return self.reply(307, Location="/api/models/%s/revision/%s?blobs=true" % (hub.renamed[repo], revision))
        if hub.private and self.headers.get("Authorization") != "Bearer sesame" or repo not in hub.repos:
            return self.reply(401, {"error": "Repository not found"})
        if hub.gated:
            return self.reply(403, {"error": "Access to model is restricted"})
        if revision not in ("main", hub.commit):
            return self.reply(404, {"error": "Invalid rev id"})
        files = []
        for name, data in hub.repos[repo].items():
            entry = {"rfilename": name, "size": len(data), "blobId": sha1(data)}
            if len(data) >= BIG:
                entry["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 134}
            files.append(entry)
        self.reply(200, hub.answer(dict(id=repo, sha=hub.commit, siblings=files)))

    def file(self, hub, repo, name):
        if repo in hub.renamed:
            return self.reply(307, Location=self.path.replace(repo, hub.renamed[repo]))
        if hub.elsewhere and len(hub.repos[repo][name]) >= BIG:
            return self.reply(302, Location="%s/cdn/%s/%s" % (hub.elsewhere, repo, name))
        self.give(hub, hub.repos[repo][name])

    def give(self, hub, data):
        with hub.lock:
            status = hub.statuses.pop(0) if hub.statuses else 0
        if status:
            return self.reply(status, b"no")
        data = hub.lie(data)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        first, last = 0, len(data) - 1
        if wanted and hub.ranges:
            first, last = int(wanted[1]), min(int(wanted[2]), last)
        piece = data[first:last + 1]
        self.send_response(206 if wanted and hub.ranges else 200)
        if wanted and hub.ranges:
            self.send_header("Content-Range", hub.range_said or "bytes %d-%d/%d" % (first, last, len(data)))
        self.send_header("Content-Length", str(len(piece)))
        self.end_headers()
        with hub.lock:
            cut = hub.cut if hub.cut is not None and hub.cuts > 0 and len(piece) > hub.cut else None
            hub.cuts -= cut is not None
        self.write(hub, piece if cut is None else piece[:cut])
        self.close_connection |= cut is not None

    def write(self, hub, data):
        try:
            for i in range(0, len(data), 1 << 16):
                self.wfile.write(data[i:i + (1 << 16)])
                with hub.lock:
                    hub.sent += min(1 << 16, len(data) - i)
                    pause = (1 << 16) / hub.pace if hub.pace else 0
                time.sleep(pause)
        except OSError:
            self.close_connection = True


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):  # who was asking was killed
        pass


class Hub:
    def __init__(self, repos):
        self.repos, self.renamed, self.asked, self.statuses = repos, {}, [], []
        self.commit = "0123456789abcdef0123456789abcdef01234567"
        self.ranges, self.cut, self.cuts, self.pace, self.range_said = True, None, 0, 0, None
        self.lie, self.answer, self.elsewhere = lambda data: data, lambda answer: answer, None
        self.gated = self.private = False
        self.sent, self.lock = 0, threading.Lock()
        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.server.hub = self
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def files_asked(self):
        return [a for a in self.asked if "/resolve/" in a[0]]
