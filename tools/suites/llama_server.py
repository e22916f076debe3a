#!/usr/bin/env python3
"""Stands where llama.cpp's tests expect llama-server: takes its flags, and becomes gyre serve with those that mean the
same.

GYRE is the command, GYRE_MODEL the model's folder, whatever model the flags name. A flag of a feature that gyre does
not have ends it with "not applicable: REASON"; but without --offline, which is how the tests load their models
beforehand, anything starts.
"""
import os
import sys

LACKS = {
    "--lora": "LoRA adapters",
    "--mmproj-url": "images",
    "--media-path": "images",
    "--reranking": "reranking",
    "--models-dir": "router of models",
    "--models-preset": "router of models",
    "--models-max": "router of models",
    "--no-models-autoload": "router of models",
    "--spec-type": "speculative decoding",
    "--model-draft": "speculative decoding",
    "--slot-save-path": "slots that are saved",
    "--slots": "slots",
    "--context-shift": "shifting of the context",
    "--tools": "tools of its own",
    "--tools-runtime": "tools of its own",
    "--mcp-servers-config": "MCP servers",
    "--mcp-servers-json": "MCP servers",
    "--sleep-idle-seconds": "sleeping",
    "--ui-mcp-proxy": "proxy",
    "--grp-attn-n": "self-extend",
    "--cache-ram": "cache of prompts beside the slots'",
    "--backend_sampling": "choice of where tokens are sampled",
    "--kv-unified": "cache by slot",
}
ALONE = ("--offline", "--cont-batching", "--embedding", "--reranking", "--metrics", "--kv-unified", "--swa-full",
         "--slots", "--no-slots", "--verbose", "--context-shift", "--no-ui", "--no-models-autoload", "--jinja",
         "--no-jinja", "--no-mmproj", "--no-cache-idle-slots", "--ui-mcp-proxy", "--backend_sampling")

# llama-server answers to any name; these are the ones that the tests use.
ANY_NAME = ("test", "gpt-4.1", "gpt-3.5-turbo", "gpt-3.5-turbo-instruct", "davinci-002", "text-embedding-3-small")


def read(words):
    """{flag: value, or True}."""
    flags, i = {}, 0
    while i < len(words):
        flags[words[i]] = True if words[i] in ALONE else words[i + 1]
        i += 1 if words[i] in ALONE else 2
    return flags


def main():
    flags = read(sys.argv[1:])
    for flag, what in LACKS.items():
        if flag in flags and "--offline" in flags:
            sys.exit("not applicable: gyre has no " + what)
    slots = int(flags.get("--parallel", 1))
    command = [os.environ["GYRE"], "serve", os.environ["GYRE_MODEL"], "--threads", "1", "--max-num-seqs", str(slots)]
    command += ["--port", flags["--port"], "--host", flags["--host"]]
    for name in (flags.get("--alias", "story"), *ANY_NAME):
        command += ["--served-model-name", name]
    if "--ctx-size" in flags:
        command += ["--max-model-len", str(min(2048, int(flags["--ctx-size"]) // slots))]
    if "--api-key" in flags:
        command += ["--api-key", flags["--api-key"]]
    if "--chat-template-file" in flags:
        command += ["--chat-template", flags["--chat-template-file"]]
    if "--cors-origins" in flags:
        command += ["--allowed-origin", flags["--cors-origins"]]
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
