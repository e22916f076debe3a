"""A headless Chromium driven over DevTools' pipe: JSON texts that end with NUL, on descriptors 3 and 4. Not a test
itself."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from patience import PATIENCE

PROGRAM = next(
    (p for p in map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")) if p),
    None)


class Browser:
    def __init__(self, width=1280, height=860):
        self.profile = tempfile.mkdtemp(prefix="gyre-browser-")
        to_read, self.out = os.pipe()
        self.inp, to_write = os.pipe()
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--force-color-profile=srgb", "--remote-debugging-pipe", "--user-data-dir=" + self.profile
        ]
        self.process = subprocess.Popen(
            ["bash", "-c",  # sh need not know descriptors of two digits
             'exec "$@" 3<&%d 4>&%d' % (to_read, to_write), "bash", PROGRAM, *flags, "about:blank"],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.next_id, self.rest, self.session = 0, b"", None
        self.errors, self.requests = [], [
        ]  # of the page: exceptions and refusals of its policy; URLs that it asked for
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.colours("light")
        self.window(width, height)

    def close(self):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(timeout=10)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.inp)
        shutil.rmtree(self.profile, ignore_errors=True)

    # ---- the protocol ----

    def read(self, patience):
        end = time.monotonic() + patience
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.inp], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise RuntimeError("the browser does not answer")
            data = os.read(self.inp, 1 << 16)
            if not data:
                raise RuntimeError("the browser ended")
            self.rest += data
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **params):
        self.next_id += 1
        message = {"id": self.next_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            got = self.read(30)
            if got.get("id") == self.next_id:
                if "error" in got:
                    raise RuntimeError(method + ": " + str(got["error"]))
                return got["result"]
            self.notice(got.get("method"), got.get("params", {}))

    def notice(self, method, params):
        if method == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description")
                               or params["exceptionDetails"]["text"])
        elif method == "Log.entryAdded" and params["entry"]["source"] in ("security", "javascript"):
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    # ---- what a person does ----

    def window(self, width, height, scale=1, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                  mobile=phone)
        self.wait(
            "innerWidth === %d && new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))" %
            width)

    def colours(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme},
                                                          {"name": "prefers-reduced-motion",
                                                           "value": "reduce"}])  # nothing slides under the mouse

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href.startsWith(%s)" % json.dumps(url.split("#")[0]))

    def js(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in r:
            raise AssertionError(expression + ": " + str(r["exceptionDetails"].get("exception", {}).get("description")))
        return r["result"].get("value")

    def wait(self, expression, patience=PATIENCE):
        """Until the expression is true; returns its value."""
        end = time.monotonic() + patience
        while True:
            try:
                value = self.js(expression)
            except AssertionError:
                value = None
                if time.monotonic() > end:
                    raise
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError("this never came true: %s; the page's errors: %s" % (expression, self.errors))
            time.sleep(0.02)

    def text(self, selector):
        return self.js("[...document.querySelectorAll(%s)].map(e => e.innerText).join('\\n')" % json.dumps(selector))

    def click(self, selector):
        x, y = self.wait(
            """(() => { const e = document.querySelector(%s); if (!e) return null; e.scrollIntoView({block: 'nearest'});
            const r = e.getBoundingClientRect(); return r.width ? [r.x + r.width / 2, r.y + r.height / 2] : null;
            })()"""
            % json.dumps(selector))
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y,
                      button="left" if kind != "mouseMoved" else "none", clickCount=1)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, key, modifiers=0):
        codes = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "ArrowUp": (38, "")}
        code, text = codes[key]
        common = dict(key=key, code=key, windowsVirtualKeyCode=code, modifiers=modifiers)
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
