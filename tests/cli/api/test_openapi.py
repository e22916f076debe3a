"""/openapi.json says what is served: its paths are the routes, its fields are taken, what it says is refused is refused
by name."""
import os
import re
import unittest

from brief import slow
from serving import ROOT, Server


def setUpModule():
    global server, api
    server = Server("models/story", "--served-model-name", "story")
    status, api = server.request("GET", "/openapi.json")
    assert status == 200


def tearDownModule():
    assert server.stop() == 0


def resolve(schema):
    while "$ref" in schema:
        part = api
        for name in schema["$ref"].split("/")[1:]:
            part = part[name]
        schema = part
    return schema


def fields_of(schema):
    schema = resolve(schema)
    found = dict(schema.get("properties", {}))
    for part in schema.get("allOf", []):
        found.update(fields_of(part))
    return found


def least(schema):
    """The smallest body: what is required, and few tokens."""
    fields = fields_of(schema)
    required = [name for part in schema.get("allOf", []) + [schema] for name in resolve(part).get("required", [])]
    few = {name for name in ("max_tokens", "max_output_tokens", "content", "request_ids") if name in fields}
    return {name: fields[name]["example"] for name in few.union(required)}


def bodies():
    """(path, request schema) of everything that is posted."""
    for path, item in api["paths"].items():
        if "requestBody" in item.get("post", {}):
            yield path, resolve(item["post"]["requestBody"]["content"]["application/json"]["schema"])


class Description(unittest.TestCase):
    def test_paths_are_the_routes(self):
        with open(os.path.join(ROOT, "src/api/routes.c")) as f:
            rows = re.findall(r'^ +([A-Z_]+)\("([^"]+)"', f.read(), re.M)
        routes = {(path.replace("*}", "}"), {"GET": "get", "LONG_GET": "get", "DELETE": "delete"}.get(kind, "post"))
                  for kind, path in rows}
        self.assertEqual(routes, {(path, method) for path, item in api["paths"].items() for method in item})
        for path, item in api["paths"].items():
            status, _ = server.request("PUT", path.replace("{id}", "story"))
            self.assertEqual(status, 405, path)

    def test_every_reference_leads_somewhere(self):
        def walk(value):
            if isinstance(value, dict):
                if "$ref" in value:
                    resolve(value)
                for v in value.values():
                    walk(v)
            elif isinstance(value, list):
                for v in value:
                    walk(v)
        walk(api)
        self.assertEqual(api["info"]["version"], server.request("GET", "/version")[1]["version"])

    @slow("a request for each field")
    def test_fields_that_are_described_are_taken(self):
        for path, schema in bodies():
            fields = fields_of(schema)
            required = least(schema)
            for name, field in fields.items():
                if name in ("stream", "stream_options", "previous_response_id"):
                    continue
                with self.subTest(path=path, field=name):
                    self.assertIn("example", field)
                    body = dict(required, **{name: field["example"]})
                    if name == "top_logprobs":
                        body.update({"logprobs": True} if "chat" in path else {})
                    status, answer = server.request("POST", path, body)
                    self.assertEqual(status, 200, answer)
                    self.assertNotIn("warnings", answer)

    def test_fields_that_are_refused_are_refused_by_name(self):
        n = 0
        for path, schema in bodies():
            fields = fields_of(schema)
            required = least(schema)
            for name in schema.get("x-refused", []):
                with self.subTest(path=path, field=name):
                    self.assertNotIn(name, fields)
                    status, answer = server.request("POST", path, dict(required, **{name: "something"}))
                    self.assertEqual(status, 400, answer)
                    self.assertTrue(answer["error"]["message"].startswith(name + ":"), answer)
                    self.assertEqual(answer["error"].get("param", name), name)
                    n += 1
        self.assertGreater(n, 100)

    def test_every_field_of_the_tables_is_described(self):
        tables = {
            "/v1/completions": "chat/completions.c", "/v1/chat/completions": "chat/chat.c",
            "/v1/responses": "responses/create.c", "/v1/messages": "chat/messages.c", "/v1/embeddings": "embeddings.c"
        }

        def rows(name):
            with open(os.path.join(ROOT, "src/api", name)) as f:
                return re.findall(r'\{"(\w+)", FIELD_(\w+)', f.read())
        for path, schema in bodies():
            if path in tables:
                shared = rows("fields/request_fields.c") + rows("fields/params.c") if path != "/v1/embeddings" else []
                if "completions" in path:
                    shared += rows("fields/extensions.h")
                known = dict(shared + rows(tables[path]))  # as the server looks: its own table first
                refused = {name for name, kind in known.items() if kind == "UNSUPPORTED"}
                self.assertEqual(refused, set(schema["x-refused"]), path)
                self.assertEqual(set(known) - refused - set(fields_of(schema)), set(), path)


if __name__ == "__main__":
    unittest.main()
