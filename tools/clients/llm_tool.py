"""Simon Willison's llm, for the command line."""

PACKAGES = ["llm==0.36"]

import os
import subprocess
import sys


def _llm(server, *words, typed=None):
    place = os.path.join(os.environ["HOME"], "llm")
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, "extra-openai-models.yaml"), "w") as f:
        f.write("- model_id: story\n  model_name: %s\n  api_base: %s\n" % (server.model, server.v1))
        f.write(
            "- model_id: story-text\n  model_name: %s\n  api_base: %s\n  completion: true\n" % (server.model, server.v1)
        )
    env = dict(os.environ, LLM_USER_PATH=place, OPENAI_API_KEY="none")
    p = subprocess.run(
        [sys.executable, "-m", "llm", *words], env=env, input=typed, capture_output=True, text=True, timeout=120
    )
    assert p.returncode == 0, p.stderr
    return p.stdout.strip()


def a_prompt_is_answered_and_streamed_alike(server):
    ask = ["-m", "story", "-o", "temperature", "0", "-o", "max_tokens", "12", "Tell me a story about a fox."]
    whole = _llm(server, "prompt", "--no-stream", *ask)
    assert whole and _llm(server, "prompt", *ask) == whole


def a_conversation_goes_on(server):
    _llm(
        server,
        "prompt",
        "-m",
        "story",
        "-o",
        "max_tokens",
        "8",
        "-s",
        "You tell stories.",
        "Tell me a story about a fox.",
    )
    assert _llm(server, "prompt", "-c", "-o", "max_tokens", "8", "And then?")


def a_text_is_continued(server):
    assert _llm(server, "prompt", "-m", "story-text", "-o", "max_tokens", "8", "Once upon a time")
