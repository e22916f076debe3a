"""What the official openai package gets from the servers of test_clients.py, which runs this in an environment that has
the package; each test is one claim."""
import array
import asyncio
import json
import os
import time
import unittest
import urllib.request
from typing import Literal

import openai
import pydantic
from patience import PATIENCE

URLS = json.loads(os.environ["SERVERS"])
OPTIONS = {"api_key": "sk-test", "max_retries": 0, "timeout": PATIENCE}
client = openai.OpenAI(base_url=URLS["story"] + "/v1", **OPTIONS)
thinker = openai.OpenAI(base_url=URLS["thinker"] + "/v1", **OPTIONS)
caller = openai.OpenAI(base_url=URLS["caller"] + "/v1", **OPTIONS)  # its template knows tools
narrow = openai.OpenAI(base_url=URLS["narrow"] + "/v1", **OPTIONS)  # one sequence runs, one waits
CHAT = [{"role": "user", "content": "Tell me a story about a fox."}]
ASK = {"model": "story", "messages": CHAT}
ENDS = "Tell me a very short story about a dog and a ball."  # and so do the answers, with this sampling
SAMPLING = {"temperature": 0.4, "top_p": 0.9, "extra_body": {"seed": 13, "top_k": 50}}
SHORT = {"model": "story", "messages": [{"role": "user", "content": ENDS}], **SAMPLING}
LONG = {**ASK, "max_tokens": 900, "extra_body": {"ignore_eos": True}}


def state(name="story"):
    request = urllib.request.Request(URLS[name] + "/server_info", headers={"Authorization": "Bearer sk-test"})
    with urllib.request.urlopen(request) as r:
        return json.load(r)


def wait_until(condition, seconds=PATIENCE):
    deadline = time.time() + seconds
    while not condition():
        if time.time() > deadline:
            raise AssertionError("it did not become true")
        time.sleep(0.005)


class Models(unittest.TestCase):
    def test_models_are_listed_and_retrieved(self):
        self.assertEqual([m.id for m in client.models.list()], ["story", "tales/story"])
        self.assertEqual(client.models.retrieve("story").id, "story")
        self.assertEqual(client.models.retrieve("tales/story").id, "tales/story")


class Completions(unittest.TestCase):
    def test_completions_and_their_log_probabilities(self):
        r = client.completions.create(model="story", prompt="Once upon a time", max_tokens=5, temperature=0, logprobs=2)
        self.assertEqual(r.usage.completion_tokens, 5)
        self.assertEqual(len(r.choices[0].logprobs.tokens), 5)
        self.assertEqual(r.choices[0].finish_reason, "length")

    def test_a_streamed_completion_is_the_whole_one(self):
        ask = dict(model="story", prompt=["Once upon a time", "The cat"], max_tokens=20, temperature=0)
        texts = ["", ""]
        for chunk in client.completions.create(stream=True, **ask):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        self.assertEqual(texts, [c.text for c in client.completions.create(**ask).choices])

    def test_fields_that_no_server_of_openai_has_go_in_extra_body(self):
        r = client.completions.create(model="story", prompt="Once", max_tokens=8,
                                      extra_body={"ignore_eos": True, "top_k": 1, "min_tokens": 8})
        self.assertEqual(r.usage.completion_tokens, 8)


class Chat(unittest.TestCase):
    def test_a_streamed_chat_is_the_whole_one(self):
        whole = client.chat.completions.create(max_tokens=40, temperature=0, **ASK)
        text, usage, roles = "", None, []
        for chunk in client.chat.completions.create(max_tokens=40, temperature=0, stream=True,
                                                    stream_options={"include_usage": True}, **ASK):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                roles += [choice.delta.role] if choice.delta.role else []
            usage = chunk.usage or usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(roles, ["assistant"])

    def test_the_packages_own_stream_adds_up(self):
        with client.chat.completions.stream(**SHORT) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        self.assertLessEqual({"chunk", "content.delta", "content.done"}, kinds)
        self.assertEqual(final.choices[0].message.content,
                         client.chat.completions.create(**SHORT).choices[0].message.content)

    def test_a_message_goes_back_as_it_came(self):
        said = client.chat.completions.create(max_tokens=8, temperature=0, **ASK).choices[0].message
        def prompt_tokens(message):
            return client.chat.completions.create(model="story", messages=[*CHAT, message, *CHAT],
                                                  max_tokens=1).usage.prompt_tokens
        plain = prompt_tokens({"role": "assistant", "content": said.content})
        self.assertEqual([prompt_tokens(m) for m in (said, said.model_dump(), said.to_dict())], [plain] * 3)
        call = openai.types.chat.ChatCompletionMessageFunctionToolCall(
            id="a", type="function", function=openai.types.chat.chat_completion_message_function_tool_call.Function(
                name="f", arguments='{"x": 1}'))
        called = said.model_copy(update={"content": None, "tool_calls": [call]})
        self.assertEqual(prompt_tokens(called.model_dump()), prompt_tokens({"role": "assistant", "content": ""}))

    def test_several_choices_and_seeds(self):
        def ask(seed):
            r = client.chat.completions.create(n=3, seed=seed, temperature=1, max_tokens=20, **ASK)
            return [c.message.content for c in r.choices]
        self.assertEqual(ask(7), ask(7))
        self.assertEqual(len(set(ask(7))), 3)

    def test_log_probabilities_of_a_chat(self):
        r = client.chat.completions.create(max_tokens=4, logprobs=True, top_logprobs=3, temperature=0, **ASK)
        for token in r.choices[0].logprobs.content:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.token, token.top_logprobs[0].token)

    def test_reasoning_is_apart(self):
        message = thinker.chat.completions.create(max_tokens=40, temperature=0, **ASK).choices[0].message
        streamed = {"content": "", "reasoning_content": ""}
        for chunk in thinker.chat.completions.create(max_tokens=40, temperature=0, stream=True, **ASK):
            for name in streamed:
                streamed[name] += getattr(chunk.choices[0].delta, name, None) or ""
        self.assertEqual(streamed, {"content": message.content, "reasoning_content": message.reasoning_content})
        self.assertTrue(all(streamed.values()))

    def test_a_request_has_an_id(self):
        raw = client.chat.completions.with_raw_response.create(max_tokens=1, extra_headers={"X-Request-Id": "tale-7"},
                                                               **ASK)
        self.assertEqual((raw.headers["x-request-id"], raw.parse()._request_id), ("tale-7", "tale-7"))

    def test_many_at_once_get_what_each_gets_alone(self):
        async def text(c, i):
            stream = await c.chat.completions.create(max_tokens=30, temperature=1, seed=i, stream=True, **ASK)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=URLS["story"] + "/v1", **OPTIONS) as c:
                return await asyncio.gather(*[text(c, i) for i in range(24)])

        alone = [
            client.chat.completions.create(max_tokens=30, temperature=1, seed=i, **ASK).choices[0].message.content
            for i in range(24)
        ]
        self.assertEqual(asyncio.run(all_of_them()), alone)


class Responses(unittest.TestCase):
    def test_a_response_has_its_text(self):
        r = client.responses.create(model="story", input="Tell me a story about a fox.", max_output_tokens=20,
                                    temperature=0)
        self.assertEqual(r.output_text,
                         client.chat.completions.create(max_tokens=20, temperature=0, **ASK).choices[0].message.content)
        self.assertEqual((r.status, r.incomplete_details.reason, r.usage.output_tokens),
                         ("incomplete", "max_output_tokens", 20))

    def test_a_streamed_response_is_the_whole_one(self):
        for c in (client, thinker):
            ask = dict(model="story", input=CHAT, max_output_tokens=40, temperature=0)
            whole = c.responses.create(**ask)
            events = list(c.responses.create(stream=True, **ask))
            self.assertEqual("".join(e.delta for e in events if e.type == "response.output_text.delta"),
                             whole.output_text)
            self.assertEqual(events[-1].response.output_text, whole.output_text)
            self.assertEqual([i.type for i in events[-1].response.output], [i.type for i in whole.output])
            self.assertEqual({type(e).__name__ for e in events if type(e).__name__ == "BaseModel"}, set())

    def test_the_packages_own_stream_adds_up(self):
        with client.responses.stream(model="story", input=ENDS, **SAMPLING) as stream:
            text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
            final = stream.get_final_response()
        self.assertEqual((final.status, final.output_text), ("completed", text))

    def test_input_is_counted(self):
        counted = client.responses.input_tokens.count(model="story", input=CHAT)
        self.assertEqual(counted.input_tokens,
                         client.responses.create(model="story", input=CHAT, max_output_tokens=1).usage.input_tokens)

    def test_a_conversation_goes_on_with_its_output(self):
        first = thinker.responses.create(model="story", input=CHAT, max_output_tokens=40, temperature=0)
        r = thinker.responses.create(model="story",
                                     input=CHAT + first.output + [{"role": "user", "content": "And then?"}],
                                     max_output_tokens=5)
        self.assertGreater(r.usage.input_tokens, first.usage.input_tokens)


    def test_a_conversation_goes_on_from_what_is_stored(self):
        for c in (client, thinker):
            first = c.responses.create(model="story", input=CHAT, max_output_tokens=40, temperature=0)
            second = c.responses.create(model="story", input="And then?", previous_response_id=first.id,
                                        max_output_tokens=5, temperature=0)
            whole = c.responses.create(model="story",
                                       input=CHAT + first.output + [{"role": "user", "content": "And then?"}],
                                       max_output_tokens=5, temperature=0, store=False)
            self.assertEqual(
                (second.output, second.usage.input_tokens),
                ([whole.output[0].model_copy(update={"id": second.output[0].id})], whole.usage.input_tokens))
            self.assertEqual(c.responses.retrieve(second.id), second)
            items = list(c.responses.input_items.list(second.id, limit=2,
                                                      order="asc"))  # the package asks for page after page
            self.assertEqual([i.id for i in items][1:-1], [i.id for i in first.output])
            self.assertEqual((items[0].role, items[-1].content[0].text), ("user", "And then?"))
            c.responses.delete(second.id)
            with self.assertRaises(openai.NotFoundError):
                c.responses.retrieve(second.id)

    def test_a_response_in_the_background_is_found_or_cancelled(self):
        r = client.responses.create(model="story", input=CHAT, max_output_tokens=10, background=True)
        self.assertIn(r.status, ("queued", "in_progress"))
        wait_until(lambda: client.responses.retrieve(r.id).status == "incomplete")
        self.assertEqual(client.responses.retrieve(r.id).usage.output_tokens, 10)
        r = client.responses.create(model="story", input=CHAT, background=True, extra_body={"ignore_eos": True})
        self.assertEqual(client.responses.cancel(r.id).status, "cancelled")
        wait_until(lambda: client.responses.retrieve(r.id).status == "cancelled")


class Types(unittest.TestCase):
    def streamed(self, create, ask, bound):
        """Events, more than ten: of a longer answer if need be, as tokens that come while the server's or the client's
        thread waits for a processor are one event."""
        for n in (30, 90, 270):
            with create.with_streaming_response.create(stream=True, **dict(ask, **{bound: n})) as raw:
                events = [line[6:] for line in raw.iter_lines() if line.startswith("data: {")]
            if len(events) > 10:
                return events
        self.fail("%d events of %d tokens" % (len(events), n))

    def test_answers_are_what_the_packages_types_say(self):  # the client itself takes what it gets
        types = openai.types
        for c in (client, thinker):
            for create, whole, event, bound, ask in ((c.chat.completions, types.chat.ChatCompletion,
                                                      types.chat.ChatCompletionChunk, "max_tokens",
                                                      dict(ASK, logprobs=True, top_logprobs=2)),
                                                     (c.responses, types.responses.Response,
                                                      types.responses.ResponseStreamEvent, "max_output_tokens",
                                                      dict(model="story", input=CHAT,
                                                           include=["message.output_text.logprobs"]))):
                pydantic.TypeAdapter(whole).validate_json(
                    create.with_raw_response.create(**dict(ask, **{bound: 30})).text)
                for e in self.streamed(create, ask, bound):
                    pydantic.TypeAdapter(event).validate_json(e)
        types.Completion.model_validate_json(
            client.completions.with_raw_response.create(model="story", prompt="Once", logprobs=2).text)
        types.Model.model_validate_json(client.models.with_raw_response.retrieve("story").text)


class Weather(pydantic.BaseModel):
    """The weather in a city."""
    city: str
    days: int = 1


def says(*texts):
    """What the model will write: one of these, and no thoughts before."""
    return {"structured_outputs": {"choice": list(texts)}, "chat_template_kwargs": {"enable_thinking": False}}


CALL = '<tool_call>\n{"name": "Weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
NOON = says("It rains.")


class Tools(unittest.TestCase):
    ask = {"model": "story", "messages": CHAT, "max_tokens": 200}
    tools = [openai.pydantic_function_tool(Weather)]
    loose = [{"type": "function", "function": {"name": "Weather", "parameters": Weather.model_json_schema()}}]

    def test_a_call_is_parsed_into_the_model_it_was_made_of(self):
        r = caller.chat.completions.parse(tools=self.tools, extra_body=says(CALL), **self.ask)
        call = r.choices[0].message.tool_calls[0]
        self.assertEqual((r.choices[0].finish_reason, call.function.parsed_arguments),
                         ("tool_calls", Weather(city="Oslo", days=2)))

    def test_a_stream_helper_sees_the_arguments_grow(self):
        said, seen = "I look.\n" + CALL, []
        with caller.chat.completions.stream(tools=self.tools, extra_body=says(said), **self.ask) as stream:
            for event in stream:
                seen += [event.type] if event.type.startswith("tool_calls") else []
            message = stream.get_final_completion().choices[0].message
        self.assertEqual(message.content, "I look.\n")
        self.assertEqual(message.tool_calls[0].function.parsed_arguments, Weather(city="Oslo", days=2))
        self.assertEqual(seen[-1], "tool_calls.function.arguments.done")
        self.assertGreaterEqual(seen.count("tool_calls.function.arguments.delta"), 1)  # what must come comes at once

    def test_a_custom_tool_has_its_input_as_text(self):
        said = '<tool_call>\n{"name": "code", "arguments": {"input": "print(\\"x\\")\\n"}}\n</tool_call>'
        grammar = {"type": "grammar", "syntax": "regex", "definition": '[a-z]{2,4}!"'}
        tool = {"type": "custom", "name": "code", "description": "Runs a program."}
        r = caller.responses.create(model="story", input="Run it.", tools=[tool], extra_body=says(said))
        self.assertEqual((type(r.output[0]).__name__, r.output[0].input), ("ResponseCustomToolCall", 'print("x")\n'))
        with caller.responses.stream(model="story", input="Run it.", tools=[tool], extra_body=says(said)) as stream:
            deltas = [e.delta for e in stream if e.type == "response.custom_tool_call_input.delta"]
            self.assertEqual(("".join(deltas), stream.get_final_response().output[0].input), ('print("x")\n', ) * 2)
        message = caller.chat.completions.create(tools=[{"type": "custom", "custom": {"name": "code"}}],
                                                 extra_body=says(said), **self.ask).choices[0].message
        self.assertEqual((message.tool_calls[0].type, message.tool_calls[0].custom.input), ("custom", 'print("x")\n'))
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "x"}
        caller.chat.completions.create(messages=[*CHAT, message, result], model="story", max_tokens=1,
                                       tools=[{"type": "custom", "custom": {"name": "code"}}])
        r = caller.responses.create(model="story", input="Run it.", tools=[{**tool, "format": grammar}],
                                    max_output_tokens=300, tool_choice={"type": "custom", "name": "code"})
        if r.status == "completed":
            self.assertRegex(r.output[-1].input, '^[a-z]{2,4}!"$')

    def test_a_result_goes_back_and_is_answered(self):
        message = caller.chat.completions.create(tools=self.loose, extra_body=says(CALL), **self.ask).choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
        r = caller.chat.completions.create(tools=self.loose, extra_body=NOON,
                                           **{**self.ask, "messages": [*CHAT, message, result]})
        self.assertEqual((r.choices[0].message.content, r.choices[0].message.tool_calls), ("It rains.", None))

    def test_responses_have_calls_as_items_and_events(self):
        ask = dict(model="story", input=CHAT, max_output_tokens=200, extra_body=says(CALL),
                   tools=[{"type": "function", "name": "Weather", "parameters": Weather.model_json_schema()}])
        r = caller.responses.create(**ask)
        call = r.output[0]
        said = (call.type, call.name, json.loads(call.arguments)["city"])
        self.assertEqual(said, ("function_call", "Weather", "Oslo"))
        with caller.responses.stream(**ask) as stream:
            pieces = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
            final = stream.get_final_response()
        self.assertEqual("".join(pieces), final.output[0].arguments)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        r = caller.responses.create(**{**ask, "input": [result], "extra_body": NOON}, previous_response_id=r.id)
        self.assertEqual(r.output_text, "It rains.")


class Fox(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=10)
    age: int = pydantic.Field(ge=0, le=20)
    color: Literal["red", "grey"]


class Structured(unittest.TestCase):
    def test_a_model_of_pydantic_is_parsed(self):
        for kind in ("chat", "response"):
            if kind == "chat":
                r = client.chat.completions.parse(response_format=Fox, max_tokens=100, temperature=1, seed=3, **ASK)
                fox = r.choices[0].message.parsed
            else:
                fox = client.responses.parse(model="story", input=CHAT, text_format=Fox,
                                             max_output_tokens=100).output_parsed
            self.assertIsInstance(fox, Fox)

    def test_the_packages_own_stream_parses(self):
        with client.chat.completions.stream(response_format=Fox, max_tokens=100, **ASK) as stream:
            self.assertIsInstance(stream.get_final_completion().choices[0].message.parsed, Fox)

    def test_the_forms_of_vllm_go_in_extra_body(self):
        for extra, pattern in (({"structured_outputs": {"choice": ["red fox", "wolf"]}}, "red fox|wolf"),
                               ({"structured_outputs": {"regex": "[a-z]{2}-[0-9]"}}, "[a-z]{2}-[0-9]"),
                               ({"guided_choice": ["a", "b"]}, "a|b"), ({"guided_regex": "x{3}"}, "xxx"),
                               ({"guided_grammar": 'root ::= "a" | "b" root'}, "b*a"),
                               ({"structured_outputs": {"json": {**Fox.model_json_schema(),
                                                                 "additionalProperties": False}}}, r"\{[^}]*\}")):
            text = client.chat.completions.create(extra_body=extra, max_tokens=100, **ASK).choices[0].message.content
            self.assertRegex(text, "^(%s)$" % pattern)

    def test_reasoning_comes_first(self):
        r = thinker.chat.completions.parse(response_format=Fox, max_tokens=500, temperature=0.8, top_p=0.9, seed=6,
                                           **ASK)
        self.assertIsInstance(r.choices[0].message.parsed, Fox)
        self.assertGreater(len(r.choices[0].message.reasoning_content), 10)


class Embeddings(unittest.TestCase):
    def test_vectors_are_the_same_in_both_encodings(self):
        ask = dict(model="story", input=["A fox ran.", "A dog sat."])
        packed, plain = client.embeddings.create(**ask), client.embeddings.create(encoding_format="float",
                                                                                  **ask)  # base64 unless told
        self.assertEqual([array.array("f", d.embedding) for d in packed.data],
                         [array.array("f", d.embedding) for d in plain.data])
        self.assertEqual([d.index for d in packed.data], [0, 1])
        self.assertAlmostEqual(sum(x * x for x in plain.data[0].embedding), 1, places=5)
        self.assertEqual(len(client.embeddings.create(dimensions=8, **ask).data[1].embedding), 8)


class Faults(unittest.TestCase):
    def test_faults_are_the_packages_exceptions(self):
        def chat(**fields):
            return client.chat.completions.create(**{**ASK, "max_tokens": 2, **fields})

        for param, call in (("temperature", lambda: chat(temperature=-1)),
                            ("tools", lambda: chat(tools=[{"type": "function", "function": {"name": "f"}}])),
                            ("response_format", lambda: chat(response_format={"type": "xml"})),
                            ("previous_response_id",
                             lambda: client.responses.create(input="x", previous_response_id="resp_1")),
                            ("dimensions",
                             lambda: client.embeddings.create(model="story", input="x", dimensions=10**6)),
                            ("prompt",
                             lambda: client.completions.create(model="story", prompt="fox " * 100000, max_tokens=2))):
            with self.assertRaises(openai.BadRequestError) as e:
                call()
            self.assertEqual(e.exception.param, param)
        with self.assertRaises(openai.NotFoundError):
            chat(model="gpt-4o")
        with self.assertRaises(openai.NotFoundError):
            client.responses.retrieve("resp_1")
        with self.assertRaises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()
        with self.assertRaises(openai.APIStatusError) as e:
            client.post("/completions", cast_to=object, body={"prompt": "x" * (33 << 20)})
        self.assertEqual(e.exception.status_code, 413)

    def test_a_prompt_that_is_too_long_is_told_in_the_words_that_programs_look_for(self):
        long, near = "fox " * 2000, [7] * 1020  # of a context of 1,024
        for call in (
                lambda: client.completions.create(model="story", prompt=long),
                lambda: client.embeddings.create(model="story", input=long),
                lambda: client.chat.completions.create(model="story", messages=[{"role": "user", "content": long}]),
                lambda: client.responses.create(model="story", input=long, store=False), lambda: client.completions.
                create(model="story", prompt=near, extra_body={"use_beam_search": True, "n": 2}, max_tokens=40),
                lambda: client.chat.completions.create(max_completion_tokens=5000, **ASK)):
            with self.assertRaises(openai.BadRequestError) as e:
                call()
            self.assertIn("maximum context length is 1024 tokens", str(e.exception))
            self.assertNotIn("max_tokens", str(e.exception))
            self.assertEqual(e.exception.code, "context_length_exceeded")
        rest = client.completions.create(model="story", prompt=near,
                                         extra_body={"ignore_eos": True})  # nobody asked for the default of 16
        self.assertEqual(rest.usage.completion_tokens, 4)

    def test_a_full_queue_is_a_rate_limit(self):
        streams = [narrow.chat.completions.create(stream=True, **LONG)]
        wait_until(lambda: state("narrow")["running"] == 1)
        streams.append(narrow.chat.completions.create(stream=True, **LONG))
        with self.assertRaises(openai.RateLimitError) as e:
            narrow.chat.completions.create(**LONG)
        self.assertGreaterEqual(int(e.exception.response.headers["retry-after"]), 1)
        for stream in streams:
            stream.close()
        wait_until(lambda: state("narrow")["running"] + state("narrow")["waiting"] == 0)
        self.assertEqual(narrow.chat.completions.create(max_tokens=2, **ASK).usage.completion_tokens, 2)


class Leaving(unittest.TestCase):
    def left(self, leave):
        """Tokens that were computed after the client had left."""
        wait_until(lambda: state()["running"] == 0)
        leave()
        begin = state()["generation_tokens"]
        wait_until(lambda: state()["running"] == 0)
        return state()["generation_tokens"] - begin

    def test_a_stream_that_is_closed_is_cancelled(self):
        for create in (lambda: client.chat.completions.create(stream=True, **LONG), lambda: client.completions.create(
                model="story", prompt="Once", max_tokens=900, stream=True, extra_body={"ignore_eos": True}),
                       lambda: client.responses.create(input="Once", stream=True, extra_body={"ignore_eos": True})):
            def leave():
                stream = create()
                for _, _ in zip(range(5), stream):
                    pass
                stream.close()
            self.assertLess(self.left(leave), 200)

    def test_a_request_that_waits_may_leave(self):
        runs = narrow.chat.completions.create(stream=True, **LONG)
        wait_until(lambda: state("narrow")["running"] == 1)
        waits = narrow.chat.completions.create(stream=True, **LONG)
        wait_until(lambda: state("narrow")["waiting"] == 1)
        waits.close()
        wait_until(lambda: state("narrow")["waiting"] == 0)
        self.assertEqual([c.choices[0].finish_reason for c in runs][-1], "length")

    def test_a_call_that_takes_too_long_is_cancelled(self):
        def leave():
            with self.assertRaises(openai.APITimeoutError):
                client.with_options(timeout=0.05).chat.completions.create(n=8, **LONG)
        self.assertLess(self.left(leave), 8 * 200)

    def test_a_cancelled_task_is_cancelled_at_the_server(self):
        async def start_and_cancel():
            async with openai.AsyncOpenAI(base_url=URLS["story"] + "/v1", **OPTIONS) as c:
                task = asyncio.create_task(c.chat.completions.create(n=4, **LONG))
                while state()["running"] == 0:
                    await asyncio.sleep(0.005)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
        self.assertLess(self.left(lambda: asyncio.run(start_and_cancel())), 4 * 200)
