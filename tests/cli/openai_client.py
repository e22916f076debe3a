"""What the official openai package gets from a server: python3 openai_client.py PORT. Run by test_openai.py in an
environment of its own that has the package; each check is one claim."""
import sys
import unittest

import openai

client = openai.OpenAI(base_url="http://127.0.0.1:%s/v1" % sys.argv.pop(), api_key="sk-test", max_retries=0, timeout=60)
CHAT = [{"role": "user", "content": "Tell me a story about a fox."}]


class OpenAI(unittest.TestCase):
    def test_models_are_listed_and_retrieved(self):
        names = [m.id for m in client.models.list()]
        self.assertIn("story", names)
        self.assertEqual(client.models.retrieve("story").id, "story")
        self.assertEqual(client.models.retrieve("tales/story").id, "tales/story")

    def test_completions_and_their_log_probabilities(self):
        r = client.completions.create(model="story", prompt="Once upon a time", max_tokens=5, temperature=0, logprobs=2)
        self.assertEqual(r.usage.completion_tokens, 5)
        self.assertEqual(len(r.choices[0].logprobs.tokens), 5)
        self.assertEqual(r.choices[0].finish_reason, "length")

    def test_a_streamed_chat_is_the_whole_one(self):
        whole = client.chat.completions.create(model="story", messages=CHAT, max_tokens=40, temperature=0)
        text, usage, roles = "", None, []
        for chunk in client.chat.completions.create(model="story", messages=CHAT, max_tokens=40, temperature=0, stream=True,
                                                    stream_options={"include_usage": True}):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                roles += [choice.delta.role] if choice.delta.role else []
            usage = chunk.usage or usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(roles, ["assistant"])

    def test_several_choices_and_seeds(self):
        def ask(seed):
            r = client.chat.completions.create(model="story", messages=CHAT, n=3, seed=seed, temperature=1, max_tokens=20)
            return [c.message.content for c in r.choices]
        self.assertEqual(ask(7), ask(7))
        self.assertEqual(len(set(ask(7))), 3)

    def test_log_probabilities_of_a_chat(self):
        r = client.chat.completions.create(model="story", messages=CHAT, max_tokens=4, logprobs=True, top_logprobs=3, temperature=0)
        for token in r.choices[0].logprobs.content:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.token, token.top_logprobs[0].token)

    def test_faults_are_the_packages_exceptions(self):
        def chat(**fields):
            return client.chat.completions.create(**{"model": "story", "messages": CHAT, "max_tokens": 2, **fields})
        with self.assertRaises(openai.BadRequestError) as e:
            chat(temperature=-1)
        self.assertEqual(e.exception.body["param"], "temperature")
        with self.assertRaises(openai.NotFoundError):
            chat(model="gpt-4o")
        with self.assertRaises(openai.BadRequestError):
            client.completions.create(model="story", prompt="fox " * 100000, max_tokens=2)
        with self.assertRaises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()
        with self.assertRaises(openai.APIStatusError) as e:
            client.post("/completions", cast_to=object, body={"prompt": "x" * (33 << 20)})
        self.assertEqual(e.exception.status_code, 413)

    def test_a_stream_may_be_left(self):
        stream = client.chat.completions.create(model="story", messages=CHAT, max_tokens=100, stream=True)
        next(iter(stream))
        stream.close()
        client.chat.completions.create(model="story", messages=CHAT, max_tokens=2)

    def test_fields_that_no_server_of_openai_has_go_in_extra_body(self):
        r = client.completions.create(model="story", prompt="Once", max_tokens=8, extra_body={"ignore_eos": True, "top_k": 1, "min_tokens": 8})
        self.assertEqual(r.usage.completion_tokens, 8)


unittest.main(verbosity=2)
