"""/abort_requests: by the answer's id, by the request's, all of them, and only one's own where there are keys."""
import threading
import time
import unittest

from brief import slow
from patience import PATIENCE
from serving import Server

LONG = {"max_tokens": 990, "ignore_eos": True, "temperature": 0}
CHAT = [{"role": "user", "content": "Tell me a story about a fox."}]
KEYS = {"first": {"Authorization": "Bearer sk-first"}, "second": {"x-api-key": "sk-second"}}


def setUpModule():
    global server, keyed
    server, keyed = Server("models/story"), Server("models/story", "--api-key", "sk-first", "--api-key", "sk-second")


def tearDownModule():
    assert (server.stop(), keyed.stop()) == (0, 0)


class Running:
    """A request on a thread of its own; result is (status, answer) or the events of its stream."""

    def __init__(self, who, path, body, headers, stream):
        def run():
            self.result = who.events(path, headers, **body) if stream else who.request("POST", path, body, headers)
        self.thread = threading.Thread(target=run)
        self.thread.start()

    def join(self):
        self.thread.join(PATIENCE)
        return self.result


class Abort(unittest.TestCase):
    def start(self, *asks, who=None, headers=None, n=1, stream=False):
        who = who or server
        began = [
            Running(who, path, dict(LONG, **body), {**(headers or {}), "X-Request-Id": name}, stream)
            for name, path, body in asks
        ]
        deadline = time.time() + PATIENCE
        while who.request("GET", "/server_info", headers=headers)[1]["running"] < n * len(asks):
            self.assertLess(time.time(), deadline)
            time.sleep(0.002)
        return began

    def abort(self, who=None, headers=None, **body):
        status, answer = (who or server).request("POST", "/abort_requests", body, headers)
        self.assertEqual(status, 200, answer)
        return answer["aborted"]

    @slow("two seconds of a processor")
    def test_one_is_ended_and_the_others_go_on(self):
        prompts = ["The %s" % animal for animal in ("fox", "dog", "cat")]
        _, alone = server.post("/v1/completions", prompt=prompts, **LONG)
        running = self.start(*[(p[4:], "/v1/completions", {"prompt": p}) for p in prompts])
        self.assertEqual(len(self.abort(request_ids=["dog", "bear"])), 1)
        answers = [r.join()[1]["choices"][0] for r in running]
        self.assertEqual([a["finish_reason"] for a in answers], ["length", "abort", "length"])
        for answer, whole in zip(answers, alone["choices"]):
            self.assertTrue(whole["text"].startswith(answer["text"]))
        self.assertEqual([a["text"] == w["text"] for a, w in zip(answers, alone["choices"])], [True, False, True])

    def test_an_id_is_also_that_of_the_answer(self):
        running, = self.start(("x", "/v1/chat/completions", {"messages": CHAT}))
        found = [e["id"] for e in server.request("GET", "/debug/requests")[1]["in_flight"] if e["request_id"] == "x"]
        self.assertEqual(self.abort(request_ids=found), found)
        self.assertEqual(running.join()[1]["choices"][0]["finish_reason"], "abort")
        self.assertEqual(self.abort(request_ids=found), [])

    def test_all_choices_end(self):
        running, = self.start(("x", "/v1/completions", {"prompt": ["The fox", "The dog"], "n": 2}), n=4)
        self.assertEqual(len(self.abort(abort_all=True)), 1)
        self.assertEqual({c["finish_reason"] for c in running.join()[1]["choices"]}, {"abort"})

    def test_dialects_without_a_word_for_it_say_an_error(self):
        for stream in (False, True):
            running = self.start(("a", "/v1/messages", {"messages": CHAT}),
                                 ("b", "/v1/responses", {"input": "Once", "max_tokens": None}), stream=stream)
            self.assertEqual(len(self.abort(request_ids=["a", "b"])), 2)
            message, response = (r.join() for r in running)
            if stream:
                self.assertEqual((message[-1][0], message[-1][1]["error"]["type"]), ("error", "api_error"))
                self.assertEqual((response[-1][0], response[-1][1]["response"]["status"]),
                                 ("response.failed", "failed"))
                self.assertIn("aborted", response[-1][1]["response"]["error"]["message"])
            else:
                self.assertEqual((message[0], message[1]["error"]["type"]), (499, "api_error"))
                self.assertEqual((response[0], response[1]["error"]["message"]), (499, "the request was aborted"))

    def test_a_beam_search_ends(self):
        for _ in range(3):
            search = Running(server, "/v1/completions",
                             {"prompt": "The fox", "use_beam_search": True, "n": 4, "max_tokens": 900},
                             {"X-Request-Id": "beams"}, False)
            deadline = time.time() + PATIENCE
            while server.request("GET", "/server_info")[1]["running"] == 0:
                self.assertLess(time.time(), deadline)
                time.sleep(0.002)
            self.assertEqual(len(self.abort(request_ids=["beams"])), 1)
            self.assertEqual(search.join(), (499, {
                "error": {
                    "message": "the request was aborted", "type": "invalid_request_error", "param": None, "code": None
                }
            }))
        self.assertEqual(server.request("GET", "/server_info")[1]["running"], 0)

    def test_a_key_ends_its_own_requests_only(self):
        first, = self.start(("x", "/v1/completions", {"prompt": "The fox"}), who=keyed, headers=KEYS["first"])
        for body in ({"request_ids": ["x"]}, {"abort_all": True}):
            self.assertEqual(self.abort(who=keyed, headers=KEYS["second"], **body), [])
        self.assertEqual(len(self.abort(who=keyed, headers=KEYS["first"], abort_all=True)), 1)
        self.assertEqual(first.join()[1]["choices"][0]["finish_reason"], "abort")
        self.assertEqual(keyed.request("POST", "/abort_requests", {"abort_all": True})[0], 401)

    def test_bodies_that_say_nothing_are_refused(self):
        for body in ({}, {"request_ids": "x"}, {"request_ids": [5]}, {"abort_all": "yes"}, {"abort_all": False},
                     {"request_ids": None}):
            self.assertEqual(server.request("POST", "/abort_requests", body)[0], 400, body)
        self.assertEqual(self.abort(request_ids=["x"] * 100000), [])


if __name__ == "__main__":
    unittest.main()
