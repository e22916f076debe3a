"""/v1/responses that are stored: shown, deleted, gone on from, cancelled, bounded, and each key's own; and what is cut
from a conversation.

Not in make test-fast: answers that must last."""

import tempfile
import time
import unittest

from brief import slow
from serving import Server, thinking_model

ASK = "Tell me a story about a fox."
LONG = {"max_output_tokens": 900, "ignore_eos": True, "temperature": 0}


def setUpModule():
    global server, thinker, small, keyed, none, folder
    folder = tempfile.TemporaryDirectory()
    server = Server("models/story")
    thinker = Server(thinking_model(folder.name))
    small = Server("models/story", "--stored-responses", "20000")
    keyed = Server("models/story", "--api-key", "sk-alice", "--api-key", "sk-bob")
    none = Server("models/story", "--stored-responses", "0")


def tearDownModule():
    codes = [s.stop() for s in (server, thinker, small, keyed, none)]
    folder.cleanup()
    assert codes == [0] * 5, codes


def make(s=None, headers=None, **body):
    status, r = (s or server).request(
        "POST", "/v1/responses", dict({"input": ASK, "max_output_tokens": 8, "temperature": 0}, **body), headers
    )
    assert status == 200, r
    return r


def get(path, s=None, **headers):
    return (s or server).request("GET", "/v1/responses/" + path, headers=headers)


def drop(id, s=None, **headers):
    return (s or server).request("DELETE", "/v1/responses/" + id, headers=headers)


def text_of(response):
    return "".join(p["text"] for i in response["output"] if i["type"] == "message" for p in i["content"])


def until_over(id, s=None):
    for _ in range(600):
        status, r = get(id, s)
        if status != 200 or r["status"] not in ("queued", "in_progress"):
            return status, r
        time.sleep(0.05)
    raise AssertionError("it is never over")


class Stored(unittest.TestCase):
    def test_a_response_is_shown_as_it_was_answered(self):
        for s in (server, thinker):
            r = make(s)
            self.assertTrue(r["store"])
            self.assertEqual(get(r["id"], s), (200, r))
            streamed = s.events("/v1/responses", input=ASK, max_output_tokens=8)[-1][1]["response"]
            self.assertEqual(get(streamed["id"], s), (200, streamed))

    def test_what_is_not_to_be_stored_is_not(self):
        r = make(store=False)
        self.assertFalse(r["store"])
        self.assertEqual(get(r["id"])[0], 404)
        r = make(none)
        self.assertFalse(r["store"])
        self.assertEqual(get(r["id"], none)[0], 404)

    def test_a_deleted_one_is_gone_and_what_went_on_from_it_is_not(self):
        first = make()
        second = make(previous_response_id=first["id"], input="And then?")
        self.assertEqual(drop(first["id"]), (200, {"id": first["id"], "object": "response", "deleted": True}))
        self.assertEqual((get(first["id"])[0], drop(first["id"])[0]), (404, 404))
        third = make(previous_response_id=second["id"], input="And then?")
        self.assertGreater(third["usage"]["input_tokens"], second["usage"]["input_tokens"])
        status, r = server.post("/v1/responses", input="x", previous_response_id=first["id"])
        self.assertEqual((status, r["error"]["param"]), (400, "previous_response_id"))


class GoingOn(unittest.TestCase):
    def test_it_is_the_conversation_sent_whole(self):
        for s in (server, thinker):
            first = make(s, instructions="You tell stories.", max_output_tokens=40)
            second = make(s, previous_response_id=first["id"], input="And then?", instructions="Be short.")
            third = make(s, previous_response_id=second["id"], input=[{"role": "user", "content": "Why?"}])
            self.assertEqual(third["previous_response_id"], second["id"])
            said = [
                {"role": "user", "content": ASK},
                *first["output"],
                {"role": "user", "content": "And then?"},
                *second["output"],
                {"role": "user", "content": "Why?"},
            ]
            whole = make(s, input=said, store=False)  # instructions are those of one response
            self.assertEqual(
                (whole["usage"]["input_tokens"], text_of(whole)), (third["usage"]["input_tokens"], text_of(third))
            )
            counted = s.post("/v1/responses/input_tokens", input="Why?", previous_response_id=second["id"])[1][
                "input_tokens"
            ]
            self.assertEqual(counted, third["usage"]["input_tokens"])

    def test_two_may_go_on_from_one(self):
        first = make()
        a, b = (make(previous_response_id=first["id"], input=text) for text in ("And then?", "Stop."))
        self.assertEqual(get(a["id"])[1]["previous_response_id"], get(b["id"])[1]["previous_response_id"])

    def test_input_items_are_the_conversation_before_the_answer(self):
        first = make()
        second = make(
            previous_response_id=first["id"],
            input=[{"role": "user", "content": [{"type": "input_text", "text": "And then?"}]}],
        )
        r = get(second["id"] + "/input_items?order=asc")[1]
        self.assertEqual(
            [(i["type"], i["role"]) for i in r["data"]],
            [("message", "user"), ("message", "assistant"), ("message", "user")],
        )
        self.assertEqual([i["content"][0]["type"] for i in r["data"]], ["input_text", "output_text", "input_text"])
        self.assertEqual(r["data"][1]["id"], first["output"][0]["id"])
        self.assertEqual(
            (r["object"], r["first_id"], r["last_id"], r["has_more"]),
            ("list", r["data"][0]["id"], r["data"][2]["id"], False),
        )
        newest = get(second["id"] + "/input_items?limit=2")[1]
        self.assertEqual((newest["data"], newest["has_more"]), (r["data"][:0:-1], True))
        rest = get(second["id"] + "/input_items?limit=2&after=" + newest["last_id"])[1]
        status, unknown = get(second["id"] + "/input_items?after=msg_nowhere")
        self.assertEqual((status, unknown["error"]["message"]), (400, "after: no item has this id"))
        self.assertEqual((rest["data"], rest["has_more"]), (r["data"][:1], False))
        for query in ("limit=0", "limit=101", "limit=x", "order=up"):
            self.assertEqual(get(second["id"] + "/input_items?" + query)[0], 400, query)
        self.assertEqual(get("resp_none/input_items")[0], 404)


class Bounds(unittest.TestCase):
    @slow("it fills the memory")
    def test_the_oldest_go_when_the_memory_is_full(self):
        made = [make(small, input="%d %s" % (i, "fox " * 100))["id"] for i in range(40)]
        found = [get(id, small)[0] == 200 for id in made]
        self.assertEqual(found, sorted(found))
        self.assertTrue(3 < sum(found) < 30, found)
        self.assertLessEqual(small.metric("gyre:stored_response_bytes"), 20000)
        self.assertEqual(small.metric("gyre:stored_responses"), sum(found))
        for id in made:
            drop(id, small)
        self.assertEqual((small.metric("gyre:stored_response_bytes"), small.metric("gyre:stored_responses")), (0, 0))

    def test_a_refused_one_holds_nothing(self):
        s = Server("models/story")
        try:
            first = make(s)
            before = s.metric("gyre:stored_response_bytes")
            for body in (
                {"input": 5},
                {"input": "fox " * 4000},
                {"input": "x", "truncation": "perhaps"},
                {"input": "x", "max_output_tokens": 5000},
            ):
                self.assertEqual(s.post("/v1/responses", previous_response_id=first["id"], **body)[0], 400, body)
            self.assertEqual(s.metric("gyre:stored_response_bytes"), before)
            drop(first["id"], s)
            self.assertEqual(s.metric("gyre:stored_response_bytes"), 0)
        finally:
            self.assertEqual(s.stop(), 0)

    def test_a_long_chain_is_freed_with_its_end(self):
        last = None
        for _ in range(60):
            last = make(
                small,
                input="x",
                max_output_tokens=1,
                **({"previous_response_id": last} if last else {}),
                truncation="auto"
            )["id"]
            self.assertLessEqual(small.metric("gyre:stored_response_bytes"), 20000)
            if get(last, small)[0] == 404:  # longer than all that may be stored
                break
        self.assertEqual(small.metric("gyre:stored_response_bytes"), 0)


class Keys(unittest.TestCase):
    @slow("30 long prompts")
    def test_who_stores_much_takes_nothing_from_others(self):
        alice, bob = {"Authorization": "Bearer sk-alice"}, {"Authorization": "Bearer sk-bob"}
        s = Server("models/story", "--api-key", "sk-alice", "--api-key", "sk-bob", "--stored-responses", "30000")
        try:
            his = make(s, bob)["id"]
            last = None  # a chain: its turns belong to her though only the last response holds them
            for i in range(30):
                more = (
                    {"previous_response_id": last}
                    if last and s.request("GET", "/v1/responses/" + last, headers=alice)[0] == 200
                    else {}
                )
                last = make(s, alice, input="%d %s" % (i, "fox " * 300), truncation="auto", **more)["id"]
            self.assertEqual(get(his, s, **bob)[0], 200)
        finally:
            self.assertEqual(s.stop(), 0)

    def test_nobody_sees_or_goes_on_from_anothers(self):
        alice, bob = {"Authorization": "Bearer sk-alice"}, {"Authorization": "Bearer sk-bob"}
        r = make(keyed, alice)
        self.assertEqual(get(r["id"], keyed, **bob)[0], 404)
        self.assertEqual(get(r["id"] + "/input_items", keyed, **bob)[0], 404)
        self.assertEqual(drop(r["id"], keyed, **bob)[0], 404)
        self.assertEqual(keyed.request("POST", "/v1/responses/%s/cancel" % r["id"], headers=bob)[0], 404)
        self.assertEqual(
            keyed.request("POST", "/v1/responses", {"input": "x", "previous_response_id": r["id"]}, bob)[0], 400
        )
        self.assertEqual(get(r["id"], keyed)[0], 401)
        self.assertEqual(get(r["id"], keyed, **alice)[0], 200)


class Background(unittest.TestCase):
    def test_it_is_answered_at_once_and_found_when_it_is_over(self):
        r = make(background=True)
        self.assertEqual((r["status"], r["output"], r["background"]), ("queued", [], True))
        status, over = until_over(r["id"])
        self.assertEqual((status, over["status"], text_of(over)), (200, "incomplete", text_of(make())))
        self.assertEqual(make(previous_response_id=r["id"], input="And then?")["status"], "incomplete")

    def test_it_is_cancelled(self):
        r = make(background=True, **LONG)
        self.assertEqual(server.post("/v1/responses", input="x", previous_response_id=r["id"])[0], 400)  # not over
        self.assertEqual(get(r["id"])[1]["status"], "in_progress")
        status, cancelled = server.request("POST", "/v1/responses/%s/cancel" % r["id"])
        self.assertEqual((status, cancelled["status"]), (200, "cancelled"))
        status, over = until_over(r["id"])
        self.assertEqual((status, over["status"], over["error"]), (200, "cancelled", None))
        self.assertLess(over["usage"]["output_tokens"], 900)
        again = server.request("POST", "/v1/responses/%s/cancel" % r["id"])
        self.assertEqual((again[0], again[1]["status"]), (200, "cancelled"))
        self.assertEqual(server.request("POST", "/v1/responses/%s/cancel" % make()["id"])[0], 400)
        self.assertEqual(server.request("POST", "/v1/responses/resp_none/cancel")[0], 404)

    def test_what_a_client_says_does_not_confuse_it(self):
        odd = 'a NUL \0, "status":"cancelled" and \u2028'
        r = make(input=odd, instructions=odd)
        self.assertEqual(get(r["id"])[1]["instructions"], r["instructions"])
        self.assertEqual(get(r["id"] + "/input_items")[0], 200)
        self.assertEqual(make(input=odd, previous_response_id=r["id"])["status"], "incomplete")
        self.assertEqual(server.request("POST", "/v1/responses/%s/cancel" % r["id"])[0], 400)
        r = make(background=True, instructions=odd, **LONG)
        status, cancelled = server.request("POST", "/v1/responses/%s/cancel" % r["id"])
        self.assertEqual(
            (status, cancelled["status"], cancelled["instructions"]), (200, "cancelled", r["instructions"])
        )
        self.assertEqual(until_over(r["id"])[1]["status"], "cancelled")

    def test_one_that_is_deleted_meanwhile_does_not_come_back(self):
        r = make(background=True, max_output_tokens=60, ignore_eos=True)
        self.assertEqual(drop(r["id"])[0], 200)
        for _ in range(400):
            if server.request("GET", "/load")[1]["server_load"] == 0:
                break
            time.sleep(0.05)
        self.assertEqual(get(r["id"])[0], 404)

    def test_what_cannot_be_is_refused(self):
        for body in ({"store": False}, {"stream": True}):
            status, r = server.post("/v1/responses", input="x", background=True, **body)
            self.assertEqual((status, r["error"]["param"]), (400, "background"))
        self.assertEqual(none.post("/v1/responses", input="x", background=True)[0], 400)

    def test_one_that_grows_past_the_memory_is_refused_or_gone(self):
        seen = set()
        for n in range(16800, 20000, 400):  # bytes of a tool, which the response repeats; 20,000 are stored
            tools = [{"type": "function", "name": "f", "description": "y" * n}]
            ask = dict(LONG, input="x", tools=tools, tool_choice="none", background=True, max_output_tokens=200)
            status, r = small.post("/v1/responses", **ask)
            if status == 200:
                seen.add(until_over(r["id"], small)[0])
                drop(r["id"], small)
            else:
                self.assertEqual((status, r["error"]["param"]), (400, "background"))
                seen.add(status)
        self.assertEqual(seen, {200, 404, 400})

    def test_a_server_that_ends_does_not_wait_for_it(self):
        s = Server("models/story", "--drain-timeout", "300")
        make(s, background=True, **LONG)
        begin = time.monotonic()
        self.assertEqual(s.stop(), 0)
        self.assertLess(time.monotonic() - begin, 150)


class Truncation(unittest.TestCase):
    def conversation(self, n):
        said = []
        for i in range(n):
            said += [
                {"role": "user", "content": "Question %d: %s" % (i, "fox " * 20)},
                {"role": "assistant", "content": "Answer %d: %s" % (i, "dog " * 20)},
            ]
        return said + [{"role": "user", "content": "The last question?"}]

    def test_a_conversation_past_the_context_loses_its_middle(self):
        system = [{"role": "system", "content": "You tell stories."}]
        said = self.conversation(40)
        status, r = server.post("/v1/responses", input=system + said, max_output_tokens=20)
        self.assertEqual((status, r["error"]["code"]), (400, "context_length_exceeded"))
        r = make(input=system + said, max_output_tokens=20, truncation="auto")
        self.assertEqual(r["truncation"], "auto")
        self.assertLessEqual(r["usage"]["input_tokens"], 1004)
        expected = []  # the longest that fits: the first turn, and the last ones
        for kept in range(40, -1, -1):
            expected = system + said[:2] + said[len(said) - 1 - 2 * kept :]
            if server.post("/v1/responses/input_tokens", input=expected)[1]["input_tokens"] <= 1004:
                break
        self.assertEqual(
            r["usage"]["input_tokens"], server.post("/v1/responses/input_tokens", input=expected)[1]["input_tokens"]
        )
        self.assertEqual(text_of(r), text_of(make(input=expected, max_output_tokens=20)))

    def test_what_fits_stays_whole(self):
        said = self.conversation(3)
        self.assertEqual(
            make(input=said, truncation="auto")["usage"]["input_tokens"], make(input=said)["usage"]["input_tokens"]
        )

    def test_what_cannot_be_made_to_fit_is_told(self):
        for said in ("fox " * 4000, [*self.conversation(5), {"role": "user", "content": "fox " * 4000}]):
            status, r = server.post("/v1/responses", input=said, truncation="auto", max_output_tokens=20)
            self.assertEqual((status, r["error"]["code"]), (400, "context_length_exceeded"))


if __name__ == "__main__":
    unittest.main()
