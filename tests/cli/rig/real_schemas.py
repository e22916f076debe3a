"""Real schemas at once, on a server whose model writes anything: what ends is valid. Run by test_structured.py in an
environment that has jsonschema: real_schemas.py PORT FILE."""
import collections
import http.client
import json
import queue
import sys
import threading

import jsonschema

PORT, FILE = int(sys.argv[1]), sys.argv[2]
seen, wrong = collections.Counter(), []
schemas = queue.Queue()


def ask(connection, i, schema):
    body = {"prompt": "x", "max_tokens": 500, "temperature": 2 * (i % 2), "seed": i}
    body["structured_outputs"] = {"json": schema}
    if i % 5 == 0:
        body["logprobs"] = 1  # no jumps
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def judge(schema, status, answer):
    """What became of it."""
    if status == 400:
        return "refused" if answer["error"]["param"] == "structured_outputs.json" else "unnamed"
    choice = answer["choices"][0]
    if status != 200 or choice["finish_reason"] != "stop":
        return "cut" if status == 200 and choice["finish_reason"] == "length" else "failed"
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return "valid" if kind(schema).is_valid(json.loads(choice["text"])) else "invalid"


def work():
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
    while True:
        try:
            i, schema = schemas.get_nowait()
        except queue.Empty:
            return
        try:
            what = judge(schema, *ask(connection, i, schema))
        except Exception as e:
            what = repr(e)
        seen[what] += 1
        if what not in ("valid", "cut", "refused"):
            wrong.append((i, what))


with open(FILE) as f:
    for number, line in enumerate(f):
        schemas.put((number, json.loads(line)["schema"]))
threads = [threading.Thread(target=work) for _ in range(24)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(json.dumps({"seen": seen, "wrong": wrong[:10]}))
