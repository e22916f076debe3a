"""What the official anthropic package gets from the servers of test_clients.py, which runs this in an environment that
has the package; each test is one claim."""
import asyncio
import json
import os
import time
import unittest
import urllib.request

import anthropic
import pydantic
from patience import PATIENCE

URLS = json.loads(os.environ["SERVERS"])
OPTIONS = {"api_key": "sk-test", "max_retries": 0, "timeout": PATIENCE}
client = anthropic.Anthropic(base_url=URLS["story"], **OPTIONS)
thinker = anthropic.Anthropic(base_url=URLS["thinker"], **OPTIONS)
caller = anthropic.Anthropic(base_url=URLS["caller"], **OPTIONS)  # its template knows tools
ASK = {
    "model": "story", "messages": [{"role": "user", "content": "Tell me a story about a fox."}], "max_tokens": 20,
    "extra_body": {"temperature": 0}
}


def running():
    return state("story")["running"]


def state(name):
    request = urllib.request.Request(URLS[name] + "/server_info", headers={"x-api-key": "sk-test"})
    with urllib.request.urlopen(request) as r:
        return json.load(r)


class Messages(unittest.TestCase):
    def test_a_message_and_its_usage(self):
        r = client.messages.create(system="Be brief.", **ASK)
        self.assertEqual((r.role, r.stop_reason, r.usage.output_tokens), ("assistant", "max_tokens", 20))
        self.assertTrue(r.content[0].text)
        self.assertEqual(
            client.messages.count_tokens(model="story", messages=ASK["messages"], system="Be brief.").input_tokens,
            r.usage.input_tokens + r.usage.cache_read_input_tokens)

    def test_a_streamed_message_is_the_whole_one(self):
        for c in (client, thinker):
            whole = c.messages.create(**{**ASK, "max_tokens": 40})
            with c.messages.stream(**{**ASK, "max_tokens": 40}) as stream:
                text = "".join(stream.text_stream)
                final = stream.get_final_message()
            self.assertEqual([b.model_dump(exclude={"parsed_output"}) for b in final.content],
                             [b.model_dump() for b in whole.content])
            self.assertEqual(text, whole.content[-1].text)
            self.assertEqual((final.stop_reason, final.usage.output_tokens),
                             (whole.stop_reason, whole.usage.output_tokens))

    def test_raw_events_come_in_order(self):
        kinds = [e.type for e in client.messages.create(stream=True, **ASK)]
        self.assertEqual(
            (kinds[:2], kinds[-3:]),
            (["message_start", "content_block_start"], ["content_block_stop", "message_delta", "message_stop"]))
        self.assertEqual(set(kinds[2:-3]), {"content_block_delta"})

    def test_answers_are_what_the_packages_types_say(self):  # the client itself takes what it gets
        event = pydantic.TypeAdapter(anthropic.types.RawMessageStreamEvent)
        for c in (client, thinker):
            raw = c.messages.with_raw_response.create(**{**ASK, "max_tokens": 40})
            anthropic.types.Message.model_validate_json(raw.text(), strict=True)
            for n in (
                    40, 120, 360
            ):  # tokens that come while the server's or the client's thread waits for a processor are one event
                with c.messages.with_streaming_response.create(stream=True, **{**ASK, "max_tokens": n}) as raw:
                    events = [json.loads(line[6:]) for line in raw.iter_lines() if line.startswith("data: ")]
                if len(events) > 10:
                    break
            self.assertGreater(len(events), 10)
            for e in events:
                if e["type"] != "ping":
                    event.validate_python(e, strict=True)
        anthropic.types.MessageTokensCount.model_validate_json(
            client.messages.with_raw_response.count_tokens(model="story", messages=ASK["messages"]).text(), strict=True)

    def test_thinking_is_a_block(self):
        r = thinker.messages.create(**{**ASK, "max_tokens": 60}, thinking={"type": "enabled", "budget_tokens": 1024})
        self.assertEqual([b.type for b in r.content], ["thinking", "text"])
        again = ASK["messages"] + [{"role": "assistant", "content": r.content},
                                   {"role": "user", "content": "And then?"}]
        self.assertTrue(thinker.messages.create(**{**ASK, "messages": again, "max_tokens": 3}).content)
        off = thinker.messages.create(thinking={"type": "disabled"}, **ASK)
        self.assertEqual([b.type for b in off.content], ["text"])

    def test_a_schema_is_followed(self):
        schema = {
            "type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
            "required": ["name", "age"], "additionalProperties": False
        }
        ask = {**ASK, "max_tokens": 100, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
        r = client.messages.create(**ask)
        self.assertEqual((r.stop_reason, set(json.loads(r.content[0].text))), ("end_turn", {"name", "age"}))
        with client.messages.stream(**ask) as stream:
            self.assertEqual(stream.get_final_text(), r.content[0].text)

    def test_stop_sequences_are_named(self):
        r = client.messages.create(stop_sequences=[" named"], **{**ASK, "max_tokens": 60})
        self.assertEqual((r.stop_reason, r.stop_sequence), ("stop_sequence", " named"))

    def test_the_beta_path_is_the_same(self):
        self.assertEqual(
            client.beta.messages.create(betas=["x"], **ASK).content[0].text,
            client.messages.create(**ASK).content[0].text)

    def test_a_message_has_the_id_of_its_request(self):
        self.assertTrue(client.messages.create(**ASK)._request_id)

    def test_models_are_listed(self):
        models = list(client.models.list())
        self.assertEqual([(m.id, m.type, m.max_input_tokens) for m in models],
                         [(n, "model", 1024) for n in ("story", "tales/story")])
        self.assertEqual(client.models.retrieve("story").display_name, "story")
        self.assertGreater(models[0].created_at.year, 2000)

    def test_many_at_once_get_what_each_gets_alone(self):
        async def text(c, i):
            async with c.messages.stream(**{**ASK, "extra_body": {"seed": i}}) as stream:
                return (await stream.get_final_message()).content[0].text

        async def all_of_them():
            async with anthropic.AsyncAnthropic(base_url=URLS["story"], **OPTIONS) as c:
                return await asyncio.gather(*[text(c, i) for i in range(12)])
        alone = [client.messages.create(**{**ASK, "extra_body": {"seed": i}}).content[0].text for i in range(12)]
        self.assertEqual(asyncio.run(all_of_them()), alone)

    def test_a_stream_that_is_closed_is_cancelled(self):
        with client.messages.stream(**{**ASK, "max_tokens": 900, "extra_body": {"ignore_eos": True}}) as stream:
            next(iter(stream.text_stream))
        deadline = time.time() + PATIENCE
        while running() > 0:
            self.assertLess(time.time(), deadline)
            time.sleep(0.005)


def says(text):
    """What the model will write, without thoughts before."""
    return {"structured_outputs": {"choice": [text]}, "chat_template_kwargs": {"enable_thinking": False}}


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


class Tools(unittest.TestCase):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    ask = {"model": "story", "messages": ASK["messages"], "max_tokens": 200,
           "tools": [{"name": "weather", "description": "Of a city.", "input_schema": schema}]}

    def test_a_call_is_a_block_and_its_result_goes_back(self):
        r = caller.messages.create(extra_body=says("I look.\n" + CALL), **self.ask)
        self.assertEqual((r.stop_reason, [b.type for b in r.content]), ("tool_use", ["text", "tool_use"]))
        self.assertEqual((r.content[1].name, r.content[1].input), ("weather", {"city": "Oslo"}))
        result = {"type": "tool_result", "tool_use_id": r.content[1].id, "content": "rain"}
        history = [*self.ask["messages"], {"role": "assistant", "content": r.content},
                   {"role": "user", "content": [result]}]
        r = caller.messages.create(extra_body=says("It rains."), **{**self.ask, "messages": history})
        self.assertEqual((r.stop_reason, r.content[0].text), ("end_turn", "It rains."))

    def test_a_stream_helper_puts_the_input_together(self):
        with caller.messages.stream(extra_body=says(CALL), **self.ask) as stream:
            pieces = [e.partial_json for e in stream if e.type == "input_json"]
            message = stream.get_final_message()
        self.assertEqual((message.stop_reason, message.content[0].input), ("tool_use", {"city": "Oslo"}))
        self.assertEqual(json.loads("".join(pieces)), {"city": "Oslo"})


class Faults(unittest.TestCase):
    def test_a_full_queue_is_a_rate_limit(self):
        narrow = anthropic.Anthropic(base_url=URLS["narrow"], **OPTIONS)
        ask = {**ASK, "max_tokens": 900, "extra_body": {"ignore_eos": True}}
        streams = []
        deadline = time.time() + PATIENCE
        for running, waiting in ((1, 0), (1, 1)):
            streams.append(narrow.messages.create(stream=True, **ask))
            while (state("narrow")["running"], state("narrow")["waiting"]) != (running, waiting):
                self.assertLess(time.time(), deadline)
                time.sleep(0.005)
        with self.assertRaises(anthropic.RateLimitError) as e:
            narrow.messages.create(**ask)
        self.assertEqual(e.exception.body["error"]["type"], "rate_limit_error")
        for stream in streams:
            stream.close()
        while state("narrow")["running"] + state("narrow")["waiting"] > 0:
            self.assertLess(time.time(), deadline)
            time.sleep(0.005)

    def test_faults_are_the_packages_exceptions(self):
        image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
        for kind, fields in (("temperature", {"extra_body": {"temperature": -1}}),
                             ("tools", {"tools": [{"name": "f", "input_schema": {"type": "object"}}]}),
                             ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [image]}]}),
                             ("1024", {"messages": [{"role": "user", "content": "fox " * 5000}]})):
            with self.assertRaises(anthropic.BadRequestError) as e:
                client.messages.create(**{**ASK, **fields})
            self.assertIn(kind, e.exception.message)
            self.assertEqual(e.exception.body["error"]["type"], "invalid_request_error")
        with self.assertRaises(anthropic.NotFoundError) as e:
            client.messages.create(**{**ASK, "model": "claude-fox"})
        self.assertEqual(e.exception.body["error"]["type"], "not_found_error")
        with self.assertRaises(anthropic.AuthenticationError):
            client.with_options(api_key="wrong").messages.create(**ASK)
        with self.assertRaises(anthropic.APIStatusError) as e:
            client.messages.create(**{**ASK, "system": "x" * (33 << 20)})
        self.assertEqual((e.exception.status_code, e.exception.body["error"]["type"]), (413, "request_too_large"))
