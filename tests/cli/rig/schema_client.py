"""Answers against OpenAI's own schemas and against /openapi.json, every event of streams too; and OpenAI's own
examples. Run by test_clients.py in an environment that has jsonschema."""
import json
import lzma
import os
import unittest
import urllib.error
import urllib.request

import jsonschema

from places import ROOT

URLS = json.loads(os.environ["SERVERS"])
CHAT = [{"role": "user", "content": "Tell me a story about a fox."}]


def data(name):
    with lzma.open(os.path.join(ROOT, "tests/data/openai", name)) as f:
        return json.load(f)


def send(who, method, path, body=None):
    """(status, answer), where the answer to a stream is its events."""
    headers = {"Authorization": "Bearer sk-test", "Content-Type": "application/json"}
    request = urllib.request.Request(URLS[who] + path,
                                     json.dumps(body).encode() if body is not None else None, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as r:
            text = r.read().decode()
            if not r.headers["Content-Type"].startswith("text/event-stream"):
                return r.status, json.loads(text)
            lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
            return r.status, [json.loads(line) for line in lines if line != "[DONE]"]
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


class Schemas:
    """Validators by the name of a schema."""

    def __init__(self, document):
        self.schemas = document["components"]["schemas"]
        self.document = document
        self.known = {}

    def check(self, name, value):
        if name not in self.known:
            self.known[name] = jsonschema.Draft202012Validator(
                {"$ref": "#/components/schemas/" + name, "components": self.document["components"]})
        error = jsonschema.exceptions.best_match(self.known[name].iter_errors(value))
        if error:
            raise AssertionError("%s: %s at %s: %s" %
                                 (name, error.message[:300], error.json_path, json.dumps(error.instance)[:300]))

    def fields(self, name):
        """Names of its properties, those of its parts too."""
        schema = self.schemas[name]
        found = set(schema.get("properties", {}))
        for part in schema.get("allOf", []) + ([schema] if "$ref" in schema else []):
            found |= self.fields(part["$ref"].rsplit("/", 1)[-1]) if "$ref" in part else set(part.get("properties", {}))
        return found


theirs = Schemas(data("schema.json.xz"))
EVENTS = {}  # the schema of each event of a response by its type
for option in theirs.schemas["ResponseStreamEvent"]["anyOf"]:
    name = option["$ref"].rsplit("/", 1)[-1]
    EVENTS[theirs.schemas[name]["properties"]["type"]["enum"][0]] = name
_, description = send("story", "GET", "/openapi.json")
ours = Schemas(description)

# path: (OpenAI's schema of an answer, of an event of its stream; None where the API is another's)
ANSWERS = {
    "/v1/completions": ("CreateCompletionResponse", "CreateCompletionResponse"),
    "/v1/chat/completions": ("CreateChatCompletionResponse", "CreateChatCompletionStreamResponse"),
    "/v1/responses": ("Response", None),  # each event has its own
    "/v1/embeddings": ("CreateEmbeddingResponse", None),
    "/v1/messages": (None, None),
    "/v1/responses/input_tokens": (None, None),
    "/v1/messages/count_tokens": (None, None),
    "/tokenize": (None, None),
    "/detokenize": (None, None),
}


def our_schema(path, method, kind):
    content = description["paths"][path][method]["responses"]["200"]["content"][kind]
    return content.get("x-event", content["schema"])["$ref"].rsplit("/", 1)[-1]


def without_nulls(choice):
    """Theirs forgets that a choice of a stream goes on, and that nothing comes before the first token of a prompt;
    their own answers have null in both places."""
    choice = dict(choice, finish_reason=choice["finish_reason"] or "stop")
    if choice["logprobs"]:
        choice["logprobs"] = dict(choice["logprobs"])
        for name, zero in (("token_logprobs", 0), ("top_logprobs", {})):
            choice["logprobs"][name] = [
                zero if x is None and i == 0 else x for i, x in enumerate(choice["logprobs"][name])
            ]
    return choice


def without_their_absent(choice):
    """vLLM gives these as null, which their own package takes and their schema does not."""
    absent = ("annotations", "audio", "function_call")
    return dict(choice, message={k: v for k, v in choice["message"].items() if k not in absent or v is not None})


def check_answer(path, answer):
    whole, event = ANSWERS[path]
    streamed = isinstance(answer, list)
    for value in answer if streamed else [answer]:
        ours.check(our_schema(path, "post", "text/event-stream" if streamed else "application/json"), value)
        if path == "/v1/completions":
            value = dict(value, choices=[without_nulls(c) for c in value["choices"]])
        if path == "/v1/chat/completions" and not streamed:
            value = dict(value, choices=[without_their_absent(c) for c in value["choices"]])
        if whole:
            theirs.check((event if path != "/v1/responses" else EVENTS[value["type"]]) if streamed else whole, value)


class Answers(unittest.TestCase):
    def both(self, path, who="story", **body):
        for stream in ({}, {"stream": True}):
            status, answer = send(who, "POST", path, dict(body, **stream))
            self.assertEqual(status, 200, answer)
            check_answer(path, answer)

    def test_completions(self):
        for body in ({}, {"n": 2}, {"logprobs": 0}, {"logprobs": 3, "echo": True}, {"prompt": ["The fox", "The dog"]},
                     {"prompt": [5, 6, 7]}, {"stop": [" was"]}, {"max_tokens": 0, "echo": True}, {"frobnicate": 1}):
            self.both("/v1/completions",
                      **dict({"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0}, **body))
        self.both("/v1/completions", prompt="Once", max_tokens=900, temperature=0.4, seed=13)

    def test_chats(self):
        for who in ("story", "thinker"):
            for body in ({}, {"n": 2}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 3}, {"stop": [" was"]},
                         {"max_tokens": 1}, {"frobnicate": 1}):
                self.both("/v1/chat/completions", who,
                          **dict({"messages": CHAT, "max_tokens": 20, "temperature": 0}, **body))

    def test_streams_with_usage(self):
        for path, ask in (("/v1/chat/completions", {"messages": CHAT}), ("/v1/completions", {"prompt": "Once"})):
            for options in ({"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}):
                status, events = send("story", "POST", path, dict(ask, max_tokens=5, stream=True,
                                                                  stream_options=options))
                self.assertEqual(status, 200, events)
                check_answer(path, events)

    def test_responses(self):
        for who in ("story", "thinker"):
            for body in ({}, {"max_output_tokens": 2
                              }, {"instructions": "Be brief.", "metadata": {"a": "b"},
                                  "user": "u"}, {"reasoning": {"effort": "none"}},
                         {"include": ["message.output_text.logprobs"],
                          "top_logprobs": 2}, {"input": CHAT}, {"tool_choice": "none", "store": False}):
                self.both("/v1/responses", who,
                          **dict({"input": "Tell me a story.", "max_output_tokens": 20, "temperature": 0}, **body))
        self.both("/v1/responses", input="Tell me a very short story about a dog and a ball.", temperature=0.4,
                  top_p=0.9, top_k=50, seed=13)

    def test_embeddings(self):
        for body in ({}, {"encoding_format": "base64"}, {"input": ["a", "b"]}, {"input": [5, 6]}, {"dimensions": 4}):
            path, ask = "/v1/embeddings", dict({"input": "The food was delicious."}, **body)
            status, answer = send("story", "POST", path, ask)
            self.assertEqual(status, 200, answer)
            ours.check("Embeddings", answer)
            if body.get("encoding_format") != "base64":  # theirs has no word for it
                theirs.check("CreateEmbeddingResponse", answer)

    def test_messages_and_tokens(self):
        for who in ("story", "thinker"):
            for body in ({}, {"stop_sequences": [" was"]}, {"max_tokens": 1},
                         {"thinking": {"type": "enabled", "budget_tokens": 1024}}):
                self.both("/v1/messages", who, **dict({"messages": CHAT, "max_tokens": 20, "temperature": 0}, **body))
        for path, body in (("/v1/messages/count_tokens", {"messages": CHAT}),
                           ("/v1/responses/input_tokens", {"input": CHAT}), ("/tokenize", {"prompt": "A fox."}),
                           ("/detokenize", {"tokens": [5, 6]}), ("/tokenize",
                                                                 {"prompt": "A fox.", "return_token_strs": True})):
            check_answer(path, send("story", "POST", path, body)[1])

    def test_what_is_got(self):
        stored = send("story", "POST", "/v1/responses", {"input": CHAT, "max_output_tokens": 4})[1]
        for path, item in description["paths"].items():
            if "get" in item and "application/json" in item["get"]["responses"]["200"][
                    "content"] and path != "/openapi.json":
                id = stored["id"] if "responses" in path else "tales/story"
                ours.check(our_schema(path, "get", "application/json"),
                           send("story", "GET", path.replace("{id}", id))[1])
        theirs.check("Response", send("story", "GET", "/v1/responses/" + stored["id"])[1])
        theirs.check("ListModelsResponse", send("story", "GET", "/v1/models")[1])
        theirs.check("Model", send("story", "GET", "/v1/models/story")[1])

    def test_errors(self):
        for method, path, body, status, code in (("POST", "/v1/completions", {"prompt": "x", "temperature": -1}, 400,
                                                  None), ("POST", "/v1/chat/completions", {}, 400,
                                                          None), ("POST", "/v1/responses", {"input": 5}, 400, None),
                                                 ("POST", "/v1/chat/completions", {"messages": CHAT, "model": "x"}, 404,
                                                  "model_not_found"), ("GET", "/v1/models/x", None, 404,
                                                                       "model_not_found"), ("GET", "/v1/nothing", None,
                                                                                            404, None),
                                                 ("GET", "/v1/completions", None, 405,
                                                  None), ("POST", "/v1/embeddings", {"input": []}, 400,
                                                          None), ("POST", "/v1/completions", {"prompt": "fox " * 9999},
                                                                  400, "context_length_exceeded")):
            got, answer = send("story", method, path, body)
            self.assertEqual((got, answer["error"]["code"]), (status, code), answer)
            theirs.check("ErrorResponse", answer)
            ours.check("Error", answer)


class OpenAI(unittest.TestCase):
    def test_their_examples_are_answered_or_refused_by_name(self):
        answered = refused = 0
        for e in data("examples.json.xz"):
            path = "/v1" + e["path"]
            with self.subTest(path=path, title=e["title"]):
                if e["body"] is None:
                    continue
                status, answer = send("examples", e["method"].upper(), path, e["body"])
                wants = "tools" if "tools" in e["body"] else "type" if "Image" in str(e["title"]) or "File" in str(
                    e["title"]) else None
                if wants:
                    self.assertEqual(status, 400, answer)
                    self.assertIn(wants, answer["error"]["param"])
                    refused += 1
                else:
                    self.assertEqual(status, 200, answer)
                    check_answer(path, answer)
                    self.assertNotIn("warnings", answer if isinstance(answer, dict) else answer[0])
                    answered += 1
        self.assertEqual((answered, refused), (9, 7))

    def test_every_field_of_their_requests_is_known_here(self):
        pairs = {
            "/v1/completions": "CreateCompletionRequest", "/v1/chat/completions": "CreateChatCompletionRequest",
            "/v1/responses": "CreateResponse", "/v1/embeddings": "CreateEmbeddingRequest"
        }
        for path, name in pairs.items():
            schema = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"][
                "$ref"].rsplit("/", 1)[-1]
            known = ours.fields(schema) | set(ours.schemas[schema]["x-refused"])
            self.assertGreater(len(theirs.fields(name)), 4)
            self.assertEqual(theirs.fields(name) - known, set(), path)
