"""Histories as clients really send them, with real templates: arguments of tools, null contents, empty fields, parts;
in all three dialects."""
import json
import shutil
import tempfile
import unittest

from serving import Server, real_template, templated_model

USER = {"role": "user", "content": "Hi"}
# Says what it is given, where it is asked to.
TELLS = """{%- if tell %}{{- raise_exception('told: ' ~ (messages | tojson)) }}{% endif -%}
{%- for m in messages %}{{- m.content }}{% for c in m.tool_calls %}{{- c.function.arguments | tojson -}}
{% endfor %}{% endfor -%}"""


class Model(unittest.TestCase):
    """The story model with a template of its own."""

    def serve(self, template):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        server = Server(templated_model(folder, template), "--allow-links")
        self.addCleanup(lambda: self.assertEqual(server.stop(), 0))
        return server

    def prompt(self, server, messages, **more):
        status, r = server.post("/v1/chat/completions", messages=messages, max_tokens=1, return_token_ids=True, **more)
        self.assertEqual(status, 200, r)
        return server.post("/detokenize", tokens=r["prompt_token_ids"])[1]["prompt"]


def call(arguments, content=""):
    return {"role": "assistant", "content": content,
            "tool_calls": [{"id": "call12345", "type": "function", "function": {"name": "f", "arguments": arguments}}]}


RESULT = {"role": "tool", "tool_call_id": "call12345", "name": "f", "content": "7"}


class Templates(Model):
    def check(self, template, shown, of_no_arguments=None):
        """What a call with the arguments {"x": 1} and one without any look like; and the kinds that each SDK sends."""
        server = self.serve(real_template(template))
        # The story's vocabulary has no marks of other models, so they come back with other spaces.
        def squeezed(messages):
            return self.prompt(server, messages).replace(" ", "")
        self.assertIn(shown.replace(" ", ""), squeezed([USER, call('{"x": 1}'), RESULT]))
        if of_no_arguments:
            self.assertIn(of_no_arguments.replace(" ", ""), squeezed([USER, call(""), RESULT]))
        self.assertEqual(squeezed([USER, call('{"x": 1}', None), RESULT]), squeezed([USER, call('{"x": 1}'), RESULT]))
        null = {"role": "assistant", "content": None}
        self.assertEqual(squeezed([USER, null, USER]), squeezed([USER, dict(null, content=""), USER]))
        plain = [USER, {"role": "assistant", "content": "a"}, USER]
        for extra in ({"tool_calls": []}, {"tool_calls": None, "function_call": None, "refusal": None,
                                           "audio": None}, {"annotations": [], "name": None}):
            self.assertEqual(squeezed([USER, dict(plain[1], **extra), USER]), squeezed(plain), extra)
        status, r = server.post("/v1/chat/completions", messages=[USER, call("{x: 1"), RESULT], max_tokens=1)
        self.assertEqual((status, r["error"]["param"]), (400, "messages[1].tool_calls[0].function.arguments"), r)
        self.assertIn("not valid JSON", r["error"]["message"])
        return squeezed([{"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]}])

    def test_templates_that_walk_arguments_and_parts(self):
        self.assertIn("AB", self.check("Qwen3.5-4B", "<function=f>\n<parameter=x>\n1\n</parameter>\n</function>"))
        self.assertIn(
            "AB", self.check("GLM-4.6", "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"))
        self.assertIn("AB", self.check("MiniMax-M2", '<invoke name="f">\n<parameter name="x">1</parameter>\n</invoke>'))

    def test_templates_that_write_json_and_take_a_text(self):
        self.assertIn("A\nB",
                      self.check("meta-llama-Llama-3.1-8B-Instruct", '"parameters": {"x": 1}', '"parameters": {}'))
        self.assertIn("A\nB", self.check("openai-gpt-oss-120b", 'json<|message|>{"x": 1}<|call|>'))
        self.assertIn("A\nB", self.check("Qwen-Qwen3-0.6B", '"arguments": {"x": 1}', '"arguments": {}'))


    def test_what_is_json_and_no_object_is_no_arguments(self):
        server = self.serve("{%- for m in messages %}{%- for c in m.tool_calls %}"
                            "{%- for k, v in c.function.arguments.items() %}{{- k ~ '=' ~ v ~ ' ' }}{% endfor %}"
                            "{%- endfor %}{%- endfor %}{{- 'end' -}}")
        for arguments, shown in (('{"x": 1}', "x=1 end"), ('"{\\"x\\": 1}"', "x=1 end"), ("[]", "end"), ("[1]", "end"),
                                 ("42", "end"), ("true", "end"), ("null", "end"), ('"no JSON"', "end"), (" ", "end"),
                                 ([], "end"), (7, "end"), ({"x": 1}, "x=1 end")):
            self.assertEqual(self.prompt(server, [USER, call(arguments), RESULT]).strip(), shown, arguments)

    def test_a_part_without_text_is_none(self):
        parts = [{"type": "text", "text": "A"}, {"type": "text", "text": None}, {"type": "text", "text": "B"}]
        for template, shown in (("{%- for m in messages %}{{- m.content }}{% endfor -%}", "A\nB"),
                                ("{%- for m in messages %}{%- for p in m.content %}{{- p.text ~ ';' }}"
                                 "{%- endfor %}{%- endfor -%}", "A;B;")):
            self.assertEqual(self.prompt(self.serve(template), [{"role": "user", "content": parts}]).strip(), shown)


class Dialects(Model):
    def told(self, server, path, **body):
        """The messages as the template sees them."""
        status, r = server.post(path, chat_template_kwargs={"tell": True}, **body)
        self.assertEqual(status, 400, r)
        return json.loads(r["error"]["message"].split("told: ", 1)[1])

    def test_messages_of_anthropic_and_items_of_responses_become_those_of_chat(self):
        server = self.serve(TELLS)
        chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"},
                {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
                    {"id": "b", "type": "function", "function": {"name": "g", "arguments": {}}}]},
                {"role": "tool", "tool_call_id": "a", "content": "7", "name": "f"},
                {"role": "tool", "tool_call_id": "b", "content": "A\nB", "name": "g"},
                {"role": "user", "content": "And?"}]
        sent = json.loads(json.dumps(chat))
        sent[2]["tool_calls"][0]["function"]["arguments"] = '{"x": 1}'
        sent[2]["tool_calls"][1]["function"]["arguments"] = ""
        self.assertEqual(self.told(server, "/v1/chat/completions", messages=sent), chat)
        parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
        self.assertEqual(
            self.told(
                server, "/v1/messages", max_tokens=1, system="S", messages=[{"role": "user", "content": "Q"}, {
                    "role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.",
                                                      "signature": ""}, {"type": "redacted_thinking", "data": "x"},
                                                     {"type": "text", "text": "I look."},
                                                     {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
                                                     {"type": "tool_use", "id": "b", "name": "g", "input": {}}]
                }, {
                    "role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "7"},
                                                {"type": "tool_result", "tool_use_id": "b",
                                                 "content": parts}, {"type": "text", "text": "And?"}]
                }]), chat)
        self.assertEqual(
            self.told(
                server, "/v1/responses", instructions="S", input=[{"role": "user", "content": "Q"}, {
                    "type": "reasoning", "id": "rs_1", "summary": [],
                    "content": [{"type": "reasoning_text", "text": "Hm."}]
                }, {
                    "type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                    "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]
                }, {
                    "type": "function_call", "id": "fc_1", "call_id": "a", "name": "f", "arguments": '{"x": 1}',
                    "status": "completed"
                }, {"type": "function_call", "call_id": "b", "name": "g",
                    "arguments": ""}, {"type": "function_call_output", "call_id": "a", "output": "7"}, {
                        "type": "function_call_output", "call_id": "b",
                        "output": [dict(p, type="input_text") for p in parts]
                    }, {"role": "user", "content": "And?"}]), chat)

    def test_numbers_of_schemas_are_shown_as_they_were_written(self):
        server = self.serve("{{ raise_exception(tools | tojson) }}")
        schema = '{"type":"object","properties":{"x":{"maximum":18446744073709551615,"minimum":-1e400}}}'
        tool = '{"type":"function","name":"f","parameters":%s}' % schema
        chat = '"messages":[{"role":"user","content":"a"}],"max_tokens":1,"tools":[%s]'
        for path, body in (("/v1/messages", chat % ('{"name":"f","input_schema":%s}' % schema)),
                           ("/v1/responses", '"input":"a","tools":[%s]' % tool),
                           ("/v1/chat/completions", chat % ('{"type":"function","function":%s}' % tool))):
            status, r = server.request("POST", path, "{%s}" % body)
            self.assertEqual(status, 400, r)
            self.assertIn('{"maximum": 18446744073709551615, "minimum": -Infinity}', r["error"]["message"], path)

    def test_results_alone_are_no_message_of_the_user(self):
        server = self.serve(TELLS)
        got = self.told(
            server, "/v1/messages", max_tokens=1,
            messages=[{"role": "user", "content": "Q"},
                      {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
                      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": False}]}])
        self.assertEqual([m["role"] for m in got], ["user", "assistant", "tool"])
        self.assertEqual((got[1]["content"], got[2]["content"]), ("", ""))
        got = self.told(
            server, "/v1/responses",
            input=[{"role": "user",
                    "content": "Q"}, {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
                   {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]},
                   {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"}])
        self.assertEqual([(m["role"], len(m.get("tool_calls", [])), m.get("reasoning_content")) for m in got],
                         [("user", 0, None), ("assistant", 1, None), ("assistant", 1, "Hm.")])

    def test_faulty_items_are_named(self):
        server = self.serve(TELLS)
        item = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
        for bad, param in ((dict(item,
                                 arguments="{"), "input[0].arguments"), (dict(item,
                                                                              arguments=None), "input[0].arguments"),
                           (dict(item, call_id=5), "input[0].call_id"), (dict(item, name=None), "input[0].name"),
                           ({"type": "function_call_output",
                             "call_id": "a"}, "input[0].output"), ({"type": "computer_call"}, "input[0].type")):
            status, r = server.post("/v1/responses", input=[bad])
            self.assertEqual((status, r["error"]["param"]), (400, param), r)

    def test_parts_are_continued_and_echoed(self):
        walks = "{%- for m in messages %}{{- m.role ~ ': ' }}{% for p in m.content %}{{- p.text }}{% endfor %}" \
            "{{- '\\n' }}{% endfor -%}"
        server = self.serve(walks)
        last = {"role": "assistant", "content": [{"type": "text", "text": "Once "}, {"type": "text", "text": "upon a"}]}
        body = {"continue_final_message": True, "add_generation_prompt": False}
        self.assertEqual(self.prompt(server, [USER, last], **body).strip(), "user: Hi\nassistant: Once upon a")
        status, r = server.post("/v1/chat/completions", messages=[USER, last], max_tokens=1, echo=True, **body)
        self.assertEqual(status, 200, r)
        self.assertTrue(r["choices"][0]["message"]["content"].startswith("Once upon a"), r)


if __name__ == "__main__":
    unittest.main()
