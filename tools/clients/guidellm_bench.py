"""vLLM's guidellm, which measures servers."""

PACKAGES = ["guidellm==0.8.1"]

import json
import os
import subprocess
import sys

REQUESTS = 4


def _measure(server, path):
    """The requests of a few that it says were answered."""
    out = os.path.join(os.getcwd(), path.replace("/", "-") + ".json")
    command = [
        os.path.join(os.path.dirname(sys.executable), "guidellm"),
        "run",
        "--backend",
        "kind=openai_http,target=%s,model=%s,request_format=%s" % (server.url, server.model, path),
        "--profile",
        "kind=concurrent,streams=2",
        "--constraint",
        "kind=max_requests,count=%d" % REQUESTS,
        "--tokenizer",
        "kind=huggingface_auto,model=%s" % server.folder,
        "--data",
        "kind=synthetic_text,prompt_tokens=30,output_tokens=12",
        "--output",
        "kind=json,path=%s" % out,
        "--disable-console",
    ]
    p = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert p.returncode == 0, (p.stdout + p.stderr)[-2500:]
    with open(out) as f:
        requests = json.load(f)["benchmarks"][0]["requests"]
    assert not requests["errored"], requests["errored"][0]
    return requests["successful"]


def _check(requests):
    assert len(requests) == REQUESTS, len(requests)
    assert all(r["output_tokens"] == 12 for r in requests), [r["output_tokens"] for r in requests]


def chats_are_measured(server):
    _check(_measure(server, "/v1/chat/completions"))


def completions_are_measured(server):
    _check(_measure(server, "/v1/completions"))


def responses_are_measured(server):
    _check(_measure(server, "/v1/responses"))
