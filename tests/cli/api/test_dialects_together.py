"""All dialects at once, streamed and whole, among clients that leave and requests that are aborted: each answer is what
it is alone.

Not in make test-fast: eleven clients for six seconds."""
import json
import random
import socket
import tempfile
import threading
import time
import unittest

from serving import Server, thinking_model

CHAT = [{"role": "user", "content": "Tell me a story about a fox."}]
ASKS = [("/v1/completions", {"prompt": "The little dog", "max_tokens": 40, "temperature": 0}),
        ("/v1/completions", {"prompt": ["The fox", "Once"], "n": 2, "max_tokens": 20, "seed": 3}),
        ("/v1/completions", {"prompt": "The fox", "n": 3, "use_beam_search": True, "max_tokens": 12}),
        ("/v1/chat/completions",
         {"messages": CHAT, "max_tokens": 50, "temperature": 0, "logprobs": True, "top_logprobs": 2}),
        ("/v1/responses", {"input": "Hi fox", "max_output_tokens": 40, "temperature": 0}),
        ("/v1/messages", {"messages": CHAT, "max_tokens": 40, "temperature": 0, "stop_sequences": [" day"]}),
        ("/v1/messages/count_tokens", {"messages": CHAT}), ("/v1/embeddings", {"input": ["A fox.", "A dog."]}),
        ("/tokenize", {"prompt": "A fox and a dog."})]
STREAMED = {
    "/v1/completions": lambda b: "use_beam_search" not in b, "/v1/chat/completions": lambda b: True,
    "/v1/messages": lambda b: True, "/v1/responses": lambda b: True
}


def setUpModule():
    global server, folder
    folder = tempfile.TemporaryDirectory()
    server = Server(thinking_model(folder.name), "--io-threads", "2", "--max-num-seqs", "8", "--max-num-batched-tokens",
                    "64")


def tearDownModule():
    code = server.stop()
    folder.cleanup()
    assert code == 0


def said(answer):
    """What of an answer does not depend on when it was given: its texts, vectors and why it ended."""
    kept = ("text", "content", "reasoning_content", "thinking", "finish_reason", "stop_reason", "status", "embedding",
            "tokens", "logprob", "input_tokens")
    if isinstance(answer, dict):
        return {
            k: v if isinstance(v, (str, int, float)) else said(v)
            for k, v in answer.items()
            if k in kept or isinstance(v, (dict, list)) and k not in ("usage", "prompt_tokens_details")
        }
    return [said(v) for v in answer] if isinstance(answer, list) else answer


def text_of(answer):
    """All text of a whole answer or of a stream's events, by kind of part and choice."""
    texts = {}

    def add(kind, text):
        texts[kind] = texts.get(kind, "") + (text or "")
    for e in answer if isinstance(answer, list) else [answer]:
        for c in e.get("choices", []):
            part = c.get("message") or c.get("delta") or {}
            add(("content", c["index"]), c.get("text") or part.get("content"))
            add(("reasoning", c["index"]), part.get("reasoning_content"))
        for item in e.get("output", []):
            add(item["type"], item["content"][0]["text"])
        for block in e.get("content", []) if e.get("type") == "message" else []:
            add(block["type"], block.get("text") or block.get("thinking"))
        delta = e.get("delta")
        if e.get("type") == "content_block_delta":
            add("thinking" if "thinking" in delta else "text", delta.get("text") or delta.get("thinking"))
        elif isinstance(delta, str):
            add("message" if "output_text" in e["type"] else "reasoning", delta)
    return {kind: text for kind, text in texts.items() if text}


def stream(path, body):
    return [data for _, data in server.events(path, {"X-Request-Id": "kept"}, **body)]


class Together(unittest.TestCase):
    def disturb(self, seed, until):
        """Asks and leaves, or asks and is aborted, at random moments."""
        r = random.Random(seed)
        while time.time() < until:
            path, body = r.choice(ASKS[:6])
            body = json.dumps(dict(body, stream=STREAMED[path](body) and r.random() < 0.5)).encode()
            head = ("POST %s HTTP/1.1\r\nHost: t\r\nX-Request-Id: disturbs\r\nContent-Type: application/json\r\n"
                    "Content-Length: %d\r\n\r\n" % (path, len(body)))
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
                s.sendall(head.encode() + body)
                time.sleep(r.random() * 0.1)
                if r.random() < 0.5:
                    server.post("/abort_requests", request_ids=["disturbs"])
                    s.recv(1)

    def test_each_answer_is_what_it_is_alone(self):
        alone = [said(server.post(path, **body)[1]) for path, body in ASKS]
        texts = [text_of(server.post(path, **body)[1]) for path, body in ASKS]
        faults, n, until = [], [0] * len(ASKS), time.time() + 6

        def ask(seed):
            r = random.Random(seed)
            while time.time() < until and not faults:
                i = r.randrange(len(ASKS))
                path, body = ASKS[i]
                if path in STREAMED and STREAMED[path](body) and r.random() < 0.5:
                    got, want = text_of(stream(path, body)), texts[i]
                else:
                    got, want = said(server.request("POST", path, body, {"X-Request-Id": "kept"})[1]), alone[i]
                n[i] += 1
                if got != want:
                    faults.append((path, body, got, want))

        threads = [threading.Thread(target=ask, args=(i, ))
                   for i in range(8)] + [threading.Thread(target=self.disturb, args=(i, until)) for i in range(3)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(faults, [])
        self.assertGreater(min(n), 0, n)
        self.assertTrue(all(t for t, (path, _) in zip(texts, ASKS) if path in STREAMED))


if __name__ == "__main__":
    unittest.main()
