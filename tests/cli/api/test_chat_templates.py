"""Which chat template a request is rendered with: the folder's by name, the flag's, the request's own; tools that are
not to be called; /tokenize with messages."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

from brief import slow
from serving import GYRE, ROOT, Server, real_template, templated_model

USER = {"role": "user", "content": "Hi"}
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}" \
    "{{ tools | map(attribute='function') | map(attribute='name') | join(',') if tools }}{{ mood }}"
FUNCTION = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}]


class Case(unittest.TestCase):
    def folder(self, template=PLAIN, **more):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        templated_model(folder, template)
        for name, text in more.items():
            path = os.path.join(folder, "additional_chat_templates", name + ".jinja")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(text)
        return folder

    def serve(self, folder, *flags):
        server = Server(folder, "--allow-links", *flags)
        self.addCleanup(lambda: self.assertEqual(server.stop(), 0))
        return server

    def text(self, server, **body):
        """What the prompt of a body for /tokenize is."""
        status, r = server.post("/tokenize", **dict({"messages": [USER], "add_generation_prompt": False}, **body))
        self.assertEqual(status, 200, r)
        return server.post("/detokenize", tokens=r["tokens"])[1]["prompt"].strip()

    def refused(self, server, path, param, **body):
        status, r = server.post(path, **body)
        self.assertEqual((status, r["error"].get("param", param)), (400, param), r)
        return r["error"]["message"]


class Flags(Case):
    def test_a_template_by_flag_stands_for_the_folders(self):
        folder = self.folder(tool_use="tool use")
        other = os.path.join(folder, "other.jinja")
        with open(other, "w") as f:
            f.write("other {{ messages[0].content }}")
        self.assertEqual(self.text(self.serve(folder, "--chat-template", other), tools=TOOLS), "other Hi")
        self.assertEqual(self.text(self.serve(folder, "--chat-template", "text {{ messages[0].content }}")), "text Hi")
        os.remove(os.path.join(folder, "chat_template.jinja"))
        shutil.rmtree(os.path.join(folder, "additional_chat_templates"))
        self.assertEqual(self.text(self.serve(folder, "--chat-template=" + other)), "other Hi")
        for given, why in (("nowhere.jinja", "nowhere.jinja"), ("{% if %}", "--chat-template:1:")):
            p = subprocess.run([GYRE, "serve", folder, "--allow-links", "--chat-template", given], capture_output=True,
                               text=True, timeout=60)
            self.assertEqual(p.returncode, 1)
            self.assertIn(why, p.stderr)

    def test_the_form_of_contents_by_flag(self):
        kinds = "{{ messages[0].content is string }} {{ messages[0].content[0] is mapping }}"
        parts = [{"role": "user", "content": [{"type": "text", "text": "A"}]}]
        auto, string, openai = (self.serve(self.folder(kinds), "--chat-template-content-format", f)
                                for f in ("auto", "string", "openai"))
        for server, of_text, of_parts in ((auto, "True False", "True False"), (string, "True False", "True False"),
                                          (openai, "False True", "False True")):
            self.assertEqual((self.text(server), self.text(server, messages=parts)), (of_text, of_parts))

    def test_variables_by_flag_are_defaults(self):
        server = self.serve(self.folder(), "--default-chat-template-kwargs", '{"mood": "calm"}')
        self.assertEqual(self.text(server), "user: Hi;calm")
        self.assertEqual(self.text(server, chat_template_kwargs={"mood": "wild"}), "user: Hi;wild")
        p = subprocess.run([GYRE, "serve", "models/story", "--default-chat-template-kwargs", "[]"], cwd=ROOT,
                           capture_output=True, text=True, timeout=60)
        self.assertEqual((p.returncode, "must be a JSON object" in p.stderr), (1, True), p.stderr)


class Requests(Case):
    def test_a_template_of_a_request_needs_trust(self):
        own = "own {{ messages[0].content }}{{ eos_token }}"
        server = self.serve(self.folder())
        for path in ("/v1/chat/completions", "/tokenize"):
            self.assertIn("--trust-request-chat-template",
                          self.refused(server, path, "chat_template", messages=[USER], chat_template=own))
            self.refused(server, path, "chat_template", messages=[USER], chat_template=5)
            self.assertEqual(server.post(path, messages=[USER], chat_template=None)[0], 200)
        trusting = self.serve(self.folder(), "--trust-request-chat-template")
        self.assertEqual(
            self.text(trusting, chat_template=own),
            "own Hi" + json.load(open(os.path.join(ROOT, "models/story/tokenizer_config.json")))["eos_token"])
        status, r = trusting.post("/v1/chat/completions", messages=[USER], max_tokens=1, chat_template=own,
                                  return_token_ids=True)
        self.assertEqual((status, r["prompt_token_ids"]),
                         (200, trusting.post("/tokenize", messages=[USER], chat_template=own)[1]["tokens"]))
        self.assertIn("chat_template:1: ",
                      self.refused(trusting, "/tokenize", "chat_template", messages=[USER], chat_template="{% if %}"))
        bare = self.folder()
        os.remove(os.path.join(bare, "chat_template.jinja"))
        server = self.serve(bare, "--trust-request-chat-template")
        self.assertEqual(self.text(server, chat_template="{{ messages[0].content }}"), "Hi")
        self.refused(server, "/v1/chat/completions", "messages", messages=[USER])

    def test_where_there_is_no_default_the_others_are_named(self):
        folder = self.folder(tool_use="use {{ tools | length }}", rag="rag")
        os.remove(os.path.join(folder, "chat_template.jinja"))
        server = self.serve(folder)
        self.assertEqual(self.text(server, tools=TOOLS), "use 1")
        self.assertEqual(self.text(server, chat_template="rag"), "rag")
        self.assertIn(': "rag", "tool_use"', self.refused(server, "/v1/chat/completions", "chat_template",
                                                          messages=[USER]))

    def test_the_models_own_are_asked_for_by_name(self):
        server = self.serve(
            self.folder(tool_use="use {{ tools | length }}", rag="rag {{ documents | length }}", broken="{% if %}"))
        self.assertEqual(self.text(server), "user: Hi;")
        self.assertEqual(self.text(server, tools=TOOLS), "use 1")
        self.assertEqual(self.text(server, tools=[]), "user: Hi;")
        self.assertEqual(self.text(server, chat_template="rag", documents=[{"text": "a"}, {"text": "b"}]), "rag 2")
        self.assertEqual(self.text(server, chat_template="default", tools=TOOLS), "user: Hi;look")
        self.assertIn("broken:1: ", self.refused(server, "/tokenize", "broken", messages=[USER],
                                                 chat_template="broken"))


class Tools(Case):
    @slow("it renders every template of the set")
    def test_a_choice_of_none_takes_tools_and_shows_them(self):
        anthropic = [{"name": "look", "description": "Looks.", "input_schema": FUNCTION["parameters"]}]
        flat = [dict(FUNCTION, type="function", strict=True), {"type": "web_search"}]
        for flags, shown in (((), ",look"), (("--exclude-tools-when-tool-choice-none",), "")):
            template = "{{ raise_exception('told: ' ~ (tools | tojson)) if tell }}" + PLAIN
            server = self.serve(self.folder(template), *flags)
            for path, body in (("/v1/chat/completions", {"messages": [USER], "tools": TOOLS, "tool_choice": "none"}),
                               ("/v1/responses", {"input": "Hi", "tools": flat,
                                                  "tool_choice": "none"}), ("/v1/messages", {
                                                      "messages": [USER], "max_tokens": 1, "tools": anthropic,
                                                      "tool_choice": {"type": "none"}
                                                  })):
                with self.subTest(path=path, flags=flags):
                    status, r = server.post(path, **body)
                    self.assertEqual(status, 200, r)
                    told = server.post(path, chat_template_kwargs={"tell": True},
                                       **body)[1]["error"]["message"].split("told: ")[1]
                    self.assertEqual(json.loads(told), TOOLS if shown else None)
                    for choice in (None, "auto", "required", {"type": "auto"}):
                        status, r = server.post(path, **dict(body, tool_choice=choice))
                        self.assertEqual(status, 400, r)
                        self.assertIn("tool", r["error"]["message"])
            self.assertEqual(server.post("/v1/responses", input="Hi", tools=flat, tool_choice="none")[1]["tools"], flat)

    def test_faulty_tools_are_named(self):
        server = self.serve(self.folder())
        for path, body, param in (("/v1/chat/completions",
                                   {"messages": [USER], "tools": [{"type": "function"}],
                                    "tool_choice": "none"}, "tools[0].function"),
                                  ("/v1/chat/completions", {"messages": [USER], "tools": "x", "tool_choice": "none"},
                                   "tools"), ("/v1/responses",
                                              {"input": "Hi", "tools": [{"type": "function"}],
                                               "tool_choice": "none"}, "tools[0].name"),
                                  ("/v1/responses", {"input": "Hi", "tools": [5],
                                                     "tool_choice": "none"}, "tools[0].type"), ("/v1/messages", {
                                                         "messages": [USER], "max_tokens": 1, "tools": [{}],
                                                         "tool_choice": {"type": "none"}
                                                     }, "tools[0].name")):
            self.refused(server, path, param, **body)


class Tokenize(Case):
    def test_messages_are_the_prompt_of_chat_completions(self):
        server = self.serve(self.folder(real_template("Qwen-Qwen3-0.6B")))
        conversation = [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "Once upon"}]
        for more in ({}, {"tools": TOOLS, "tool_choice": "none"}, {"chat_template_kwargs": {"enable_thinking": False}},
                     {"reasoning_effort": "none"}, {"add_generation_prompt": False},
                     {"add_generation_prompt": False, "continue_final_message": True}, {"add_special_tokens": True}):
            with self.subTest(more=more):
                status, r = server.post("/v1/chat/completions", messages=conversation, max_tokens=1,
                                        return_token_ids=True, **more)
                self.assertEqual(status, 200, r)
                status, t = server.post("/tokenize", messages=conversation, return_token_strs=True, **more)
                self.assertEqual((status, t["tokens"], t["count"]),
                                 (200, r["prompt_token_ids"], r["usage"]["prompt_tokens"]), t)
                self.assertEqual((len(t["token_strs"]), t["max_model_len"]), (t["count"], 2048))
        self.assertIsNone(server.post("/tokenize", messages=[USER])[1]["token_strs"])
        self.refused(server, "/tokenize", "continue_final_message", messages=[USER], continue_final_message=True)
        self.refused(server, "/tokenize", "messages[0].role", messages=[{}])
        self.refused(server, "/tokenize", "prompt", messages=None)

    def test_the_tokenizers_configuration(self):
        server = self.serve(self.folder())
        status, r = server.request("GET", "/tokenizer_info")
        with open(os.path.join(ROOT, "models/story/tokenizer_config.json")) as f:
            config = json.load(f)
        self.assertEqual(
            (status, r),
            (200, dict({"tokenizer_class": "PreTrainedTokenizerFast"}, **dict(config, chat_template=PLAIN))))


if __name__ == "__main__":
    unittest.main()
