"""A pytest plugin: what servers answered to a test that failed stands in its report, as the property "heard".

Loaded by tools/suites.py into suites of others, which stay as they are. Clients speak through requests or httpx.
"""
import json

import pytest

heard = []


def note(method, url, status, text):
    path = str(url).split("://", 1)[-1].partition("/")[2].partition("?")[0]
    heard.append({"method": method, "path": "/" + path, "status": status, "text": text[:1000] if status >= 400 else ""})


def wrap_requests():
    try:
        import requests
    except ImportError:
        return
    plain = requests.Session.request

    def request(self, method, url, **rest):
        r = plain(self, method, url, **rest)
        note(method, url, r.status_code, r.text if r.status_code >= 400 else "")
        return r

    requests.Session.request = request


def wrap_httpx():
    try:
        import httpx
    except ImportError:
        return
    plain, plain_async = httpx.Client.send, httpx.AsyncClient.send

    def send(self, request, **rest):
        r = plain(self, request, **rest)
        if r.status_code >= 400:
            r.read()
        note(request.method, request.url, r.status_code, r.text if r.status_code >= 400 else "")
        return r

    async def send_async(self, request, **rest):
        r = await plain_async(self, request, **rest)
        if r.status_code >= 400:
            await r.aread()
        note(request.method, request.url, r.status_code, r.text if r.status_code >= 400 else "")
        return r

    httpx.Client.send, httpx.AsyncClient.send = send, send_async


wrap_requests()
wrap_httpx()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    heard.clear()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        bad = [h for h in heard if h["status"] >= 400 and h["path"] != "/health"]
        item.user_properties.append(("heard", json.dumps(bad[-5:])))
