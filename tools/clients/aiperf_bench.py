"""NVIDIA's aiperf, which measures servers."""

PACKAGES = ["aiperf==0.13.0"]

import glob
import json
import os
import subprocess
import sys

REQUESTS, TOKENS = 6, 12


def _measure(server, kind, *words):
    """What it writes of a few requests."""
    place = os.path.join(os.getcwd(), kind)
    command = [
        os.path.join(os.path.dirname(sys.executable), "aiperf"),
        "profile",
        "--model",
        server.model,
        "--url",
        server.url,
        "--endpoint-type",
        kind,
        "--request-count",
        str(REQUESTS),
        "--concurrency",
        "2",
        "--synthetic-input-tokens-mean",
        "30",
        "--output-tokens-mean",
        str(TOKENS),
        "--extra-inputs",
        "ignore_eos:true",
        "--tokenizer",
        server.folder,
        "--artifact-dir",
        place,
        "--ui",
        "none",
        *words,
    ]
    env = {
        k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"
    }  # with it the tokenizer's folder is taken for a name of the hub
    p = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)
    assert p.returncode == 0, (p.stdout + p.stderr)[-2500:]
    found = glob.glob(place + "/**/profile_export_aiperf.json", recursive=True)
    assert found, os.listdir(place)
    with open(found[0]) as f:
        return json.load(f)


def _check(report):
    assert report["request_count"]["avg"] == REQUESTS, report["request_count"]
    assert report["output_sequence_length"]["avg"] > 0 and report["request_latency"]["avg"] > 0


def chats_are_measured(server):
    report = _measure(server, "chat", "--streaming")
    _check(report)
    assert report["time_to_first_token"]["avg"] > 0


def completions_are_measured(server):
    _check(_measure(server, "completions", "--streaming"))
