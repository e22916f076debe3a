"""Stands where vLLM's tests expect tests/utils.py: RemoteOpenAIServer is gyre serve with the flags that they give.

GYRE is the command, GYRE_MODEL the model's folder, served under whatever name a test asks for. Flags that gyre does not
know are left out; a test that needs what they do fails, and tools/suites/vllm.txt says why. The names of adapters stand
for the model itself. Written from how the tests use it.
"""
import os
import re
import subprocess
import tempfile
import time

import openai
import pytest

ROCM_EXTRA_ARGS, VLLM_PATH = [], "."
WITH_VALUE = ("--max-model-len", "--max-num-seqs", "--dtype", "--api-key", "--uds", "--served-model-name",
              "--chat-template", "--default-chat-template-kwargs", "--max-num-batched-tokens", "--block-size",
              "--override-generation-config", "--chat-template-content-format", "--port", "--host",
              "--generation-config", "--shutdown-timeout", "--seed", "--max-logprobs")
ALONE = ("--enforce-eager", "--no-enable-prefix-caching", "--enable-prefix-caching", "--enable-prompt-tokens-details",
         "--trust-request-chat-template",
         "--enable-server-load-tracking")


def unknown_flag(*_, **__):
    return pytest.mark.skip("for machines with several GPUs")


multi_gpu_only = requires_fp8 = large_gpu_mark = unknown_flag


def kept(words):
    """(flags that gyre is given, those that are left out)"""
    given, left, i = [], [], 0
    while i < len(words):
        word, _, value = str(words[i]).partition("=")
        i += 1
        if not value and word not in ALONE and i < len(words) and not str(words[i]).startswith("--"):
            value, i = str(words[i]), i + 1
        (given if word in WITH_VALUE or word in ALONE else left).append([word] + ([value] if value else []))
    return given, left


class RemoteOpenAIServer:
    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model, vllm_serve_args=(), *, env_dict=None, seed=0, auto_port=True, max_wait_seconds=60, **_):
        given, self.left_out = kept(list(vllm_serve_args))
        flags = {words[0]: words[1] if len(words) > 1 else True for words in given}
        self.uds, self.host, self.port = flags.get("--uds"), "localhost", 0
        names = [flags.pop("--served-model-name", model)]
        names += [
            value.partition("=")[0] for word, *values in self.left_out if word == "--lora-modules" for value in values
        ]
        if self.uds is None:
            flags["--port"] = flags.get("--port", "0")
        flags["--max-model-len"] = str(min(2048, int(flags.get("--max-model-len", 2048))))
        flags.pop("--dtype", None)  # the CPU computes in float32
        flags.setdefault("--override-generation-config",
                         '{"max_new_tokens": 200, "temperature": 0}')  # the same texts in each run
        command = [os.environ["GYRE"], "serve", os.environ["GYRE_MODEL"], "--threads", "2", "--kv-cache-memory", "256M"]
        command += [word for name in names for word in ("--served-model-name", name)]
        command += [word for flag, value in flags.items() for word in ([flag] if value is True else [flag, value])]
        env = dict(os.environ, **(env_dict or {}))
        self.log = tempfile.TemporaryFile("w+")
        self.proc = subprocess.Popen(command, stderr=self.log, stdout=subprocess.DEVNULL, env=env)
        self._wait(max_wait_seconds or 60)

    def _said(self):
        self.log.seek(0)
        return self.log.read()

    def _wait(self, seconds):
        end = time.time() + seconds
        while time.time() < end:
            found = re.search(r"listening on (?:http://[^ ]+:(\d+)|\S+)", self._said())
            if found:
                self.port = int(found.group(1) or 0)
                return
            if self.proc.poll() is not None:
                raise RuntimeError("not applicable: gyre refuses the flags: " + self._said().strip().split("\n")[0])
            time.sleep(0.05)
        raise RuntimeError("the server did not start: " + self._said())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.proc.poll() is None:
            self.proc.terminate()
        self.proc.wait(timeout=60)

    @property
    def url_root(self):
        return "http://%s" % self.uds.split("/")[-1] if self.uds else "http://%s:%d" % (self.host, self.port)

    def url_for(self, *parts):
        return self.url_root + "/" + "/".join(part.strip("/") for part in parts if part)

    def get_client(self, **rest):
        return openai.OpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0, **rest)

    def get_async_client(self, **rest):
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0, **rest)

    def get_client_anthropic(self, **rest):
        import anthropic
        return anthropic.Anthropic(base_url=self.url_for(), api_key=self.DUMMY_API_KEY, max_retries=0, **rest)

    def get_async_client_anthropic(self, **rest):
        import anthropic
        return anthropic.AsyncAnthropic(base_url=self.url_for(), api_key=self.DUMMY_API_KEY, max_retries=0, **rest)


RemoteVLLMServer = RemoteLaunchRenderServer = RemoteOpenAIServer
