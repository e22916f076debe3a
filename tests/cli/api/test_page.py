"""The chat page in a real Chromium: asking, stopping, editing, hostile text and servers, keys, colours, the race.

Without a browser everything that needs one is skipped, and says so. Not in make test-fast: a browser takes its time."""
import gzip
import http.client
import json
import random
import re
import threading
import time
import unittest

import browser
from fake_server import FakeServer
from serving import Server
from patience import PATIENCE

# Each must be shown as the text it is, or as a link to nowhere dangerous: no element, no request, no script.
ATTACKS = [
    "<script>window.hacked=1</script>", "<img src=http://evil.invalid/x onerror=window.hacked=1>",
    "[a](javascript:window.hacked=1)", "[b](JaVaScRiPt:window.hacked=1)", "[c](java\tscript:window.hacked=1)",
    "[d](data:text/html,<script>window.hacked=1</script>)", "![e](http://evil.invalid/pixel.png)",
    "![f](javascript:window.hacked=1)", "<javascript:window.hacked=1>", "[g](vbscript:x)",
    "[h](\x01javascript:window.hacked=1)", "<svg/onload=window.hacked=1>", "<iframe src=http://evil.invalid></iframe>",
    "[i](http://ok.invalid/\" onmouseover=\"window.hacked=1)",
    "```\"><script>window.hacked=1</script>\n</code><script>\n```",
    "| <b onclick=window.hacked=1>t</b> | [j](javascript:x) |\n| - | - |\n"
    "| <style>*{display:none}</style> | ![](http://evil.invalid/y) |",
    "<style>body{display:none}</style>", "<meta http-equiv=refresh content=0;url=http://evil.invalid>",
    "[k]: javascript:window.hacked=1\n[k]", "<base href=http://evil.invalid/>",
    "<form action=http://evil.invalid><input name=x autofocus onfocus=window.hacked=1>", "[l](file:///etc/passwd)",
    "[m](blob:http://x/y)", "&lt;script&gt;window.hacked=1", "[n](//evil.invalid/x)",
    "$\\text{<img src=x onerror=window.hacked=1>}$", "$\\href{javascript:window.hacked=1}{x}$",
    "$$\\begin{array}{<script>window.hacked=1</script>} a \\end{array}$$", "$\\style{position:fixed}{x}$",
    "\\(\\color{red;background:url(http://evil.invalid/z)} x\\)",
    "$\\unicode{<b>} \\includegraphics{http://evil.invalid/i}$"
]
MATHML = """math mrow mi mn mo mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mtable mtr mtd
    mstyle""".split()


class Served(unittest.TestCase):
    """What comes over the wire; needs no browser."""

    def test_the_page_its_policy_its_tag_and_the_key_it_does_not_need(self):
        s = Server("models/story", "--api-key", "secret")
        self.addCleanup(s.stop)

        def get(**headers):
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=20)
            c.request("GET", "/", headers={k.replace("_", "-"): v for k, v in headers.items()})
            r = c.getresponse()
            body = r.read()
            c.close()
            return r, body
        r, page = get()
        self.assertEqual((r.status, r.headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        policy = r.headers["Content-Security-Policy"]
        for part in ("default-src 'none'", "require-trusted-types-for 'script'", "frame-ancestors 'none'",
                     "base-uri 'none'", "script-src 'sha256-"):
            self.assertIn(part, policy)
        self.assertNotIn("unsafe", policy)
        self.assertEqual(r.headers["X-Content-Type-Options"], "nosniff")
        packed_r, packed = get(Accept_Encoding="br, gzip;q=0.5")
        self.assertEqual(packed_r.headers["Content-Encoding"], "gzip")
        self.assertEqual(gzip.decompress(packed), page)
        self.assertIsNone(get(Accept_Encoding="gzip;q=0")[0].headers["Content-Encoding"])
        again, nothing = get(If_None_Match=r.headers["ETag"])
        self.assertEqual((again.status, nothing), (304, b""))
        self.assertFalse(re.search(rb"\.(inner|outer)HTML|insertAdjacentHTML|document\.write|\beval\(", page))
        self.assertEqual(s.request("GET", "/v1/models")[0], 401)


@unittest.skipUnless(browser.PROGRAM,
                     "NO BROWSER: the chat page is not tested; install chromium-headless-shell or chromium")
class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("models/story", "--allowed-origin", "*")
        cls.url = "http://127.0.0.1:%d/" % cls.server.port
        cls.browser = browser.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.server.stop()

    def setUp(self):
        b = self.browser
        b.open(self.url + "version")
        b.js("localStorage.clear(); sessionStorage.clear()")
        b.errors.clear()
        b.requests.clear()
        b.open(self.url)
        b.wait("!$('model').disabled")
        b.js("settings.sampling = {max_tokens: 20}")

    def tearDown(self):
        self.assertEqual(self.browser.errors, [])

    def fake(self, answer, **options):
        """Points the page at a server of ours."""
        s = FakeServer(answer, **options)
        self.addCleanup(s.__exit__)
        self.browser.js("settings.base = %s; keep('gyre.settings', settings); findModels()" % json.dumps(s.url))
        return s

    def ask(self, text, wait=True):
        b = self.browser
        b.click("#ask")
        b.type(text)
        b.key("Enter")
        if wait:
            b.wait("jobs.size === 0")

    def answers(self):
        return self.browser.js("[...document.querySelectorAll('.msg.assistant')].map(e => e.innerText)")

    # ---- talking ----

    def test_an_answer_streams_from_the_server_with_its_times_and_outlives_the_tab(self):
        b = self.browser
        b.js("settings.sampling = {max_tokens: 60, temperature: 0}")
        self.ask("Tell me a story about a fox.")
        for _ in range(20):  # a browser that had no processor meanwhile sees all at once, which has no rate
            if "tok/s" not in b.text(".msg.assistant .stats"):
                b.click(".msg.assistant [aria-label='Ask again']")
                b.wait("jobs.size === 0 && document.querySelectorAll('.msg').length === 2")
        shown = b.text(".msg.assistant .md")
        whole = self.server.post("/v1/chat/completions",
                                 messages=[{"role": "user", "content": "Tell me a story about a fox."}], max_tokens=60,
                                 temperature=0)[1]
        self.assertEqual(b.js("current.messages[1].content"), whole["choices"][0]["message"]["content"])
        self.assertGreater(len(shown), 40)
        stats = b.text(".msg.assistant .stats")
        self.assertRegex(stats, r"[\d.,]+ tok/s")
        self.assertRegex(stats, r"[\d.]+ m?s to first token")
        self.assertIn("%d tokens" % whole["usage"]["completion_tokens"], stats)
        self.assertIn("cut at the token limit", stats)
        b.open(self.url + b.js("location.hash"))
        b.call("Page.reload")
        b.wait("document.readyState === 'complete' && document.querySelectorAll('.msg').length === 2")
        self.assertEqual(b.text(".msg.assistant .md"), shown)
        self.assertEqual(b.text("#past a"), "Tell me a story about a fox.")

    def test_the_conversation_the_system_prompt_and_the_settings_are_sent(self):
        s = self.fake(lambda h, body: h.say("Answer %d." % len(body["messages"])), models=["first", "second"])
        b = self.browser
        b.wait("$('model').options.length === 2")
        b.click("#open-settings")
        for name, value in (("system", "Be brief."), ("temperature", "0.5"), ("top_k", "3"), ("stop", "END\nFIN")):
            b.click("#set-" + name)
            b.type(value)
        b.key("Escape")
        b.wait("!$('settings').open")
        b.js("$('model').value = 'second'; $('model').dispatchEvent(new Event('change'))")
        self.ask("One")
        self.ask("Two")
        body = s.seen[-1][2]
        self.assertEqual([(m["role"], m["content"]) for m in body["messages"]], [("system", "Be brief."),
                                                                                 ("user", "One"),
                                                                                 ("assistant", "Answer 2."),
                                                                                 ("user", "Two")])
        self.assertEqual((body["model"], body["temperature"], body["top_k"], body["stop"], body["stream"]),
                         ("second", 0.5, 3, ["END", "FIN"], True))
        self.assertNotIn("top_p", body)

    def test_stop_ends_the_request_and_keeps_what_was_said(self):
        def endless(h, body):
            h.begin_stream()
            while True:
                h.delta(content="and on ")
                time.sleep(0.01)
        s = self.fake(endless)
        self.ask("Go", wait=False)
        self.browser.wait("document.querySelector('.md')?.innerText.length > 40")
        self.assertEqual(self.browser.js("$('send').getAttribute('aria-label')"), "Stop")
        self.browser.click("#send")
        self.browser.wait("jobs.size === 0", 5)
        self.assertIn("stopped", self.browser.text(".stats"))
        self.assertIn("and on", self.browser.text(".md"))
        end = time.monotonic() + PATIENCE
        while not s.left and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(s.left, 1)
        self.ask("Again", wait=False)
        self.browser.wait("jobs.size === 1")
        self.browser.key("Escape")
        self.browser.wait("jobs.size === 0", 5)

    def test_editing_and_asking_again_replace_what_followed(self):
        s = self.fake(lambda h, body: h.say("To " + body["messages"][-1]["content"] + " #%d" % len(s.seen)))
        b = self.browser
        self.ask("one")
        self.ask("two")
        b.click(".msg.user [aria-label='Edit the message']")
        b.js("document.querySelector('.edit textarea').select()")
        b.type("three")
        b.key("Enter")
        b.wait("jobs.size === 0 && document.querySelectorAll('.msg').length === 2")
        self.assertEqual(b.text(".md"), "To three #3")
        self.assertEqual([m["content"] for m in s.seen[-1][2]["messages"]], ["three"])
        b.click(".msg.assistant [aria-label='Ask again']")
        b.wait("jobs.size === 0 && document.querySelector('.md').innerText === 'To three #4'")
        b.js("$('ask').focus()")
        b.key("ArrowUp")
        b.wait("!!document.querySelector('.edit')")
        b.key("Escape")
        b.wait("!document.querySelector('.edit')")
        self.assertEqual(b.js("current.messages.length"), 2)

    def test_reasoning_is_folded(self):
        self.fake(lambda h, body: h.say("Forty-two.", reasoning="Six times seven."))
        self.ask("What?")
        b = self.browser
        self.assertFalse(b.js("document.querySelector('details.reasoning').open"))
        self.assertNotIn("Six", self.answers()[0])
        b.click("details.reasoning summary")
        self.assertIn("Six times seven.", self.answers()[0])
        self.assertEqual(b.text(".md"), "Forty-two.")

    # ---- tools ----

    def weather(self, h, body):
        results = [m["content"] for m in body["messages"] if m["role"] == "tool"]
        if results:
            return h.say("It is %s." % " and ".join(results))
        h.begin_stream()
        for i, city in enumerate(("Paris", "<b>Oslo</b>")):
            h.delta(tool_calls=[{"index": i, "id": "call_%d" % i, "type": "function",
                                 "function": {"name": "look", "arguments": ""}}])
            for piece in ('{"city"', ': "%s"}' % city):
                h.delta(tool_calls=[{"index": i, "function": {"arguments": piece}}])
        h.end_stream(finish="tool_calls")

    def set(self, **texts):
        b = self.browser
        b.click("#open-settings")
        for name, text in texts.items():
            b.js("$('set-%s').value = %s" % (name, json.dumps(text)))
        b.key("Escape")
        b.wait("!$('settings').open")

    def test_calls_of_tools_are_shown_and_a_person_answers_them(self):
        s, b = self.fake(self.weather), self.browser
        tools = [{"type": "function", "function": {"name": "look"}}]
        self.set(tools=json.dumps(tools))
        self.ask("Weather?")
        self.assertEqual(s.seen[-1][2]["tools"], tools)
        self.assertEqual(b.js("[...document.querySelectorAll('.call')].map(e => e.querySelector('pre').textContent)"),
                         ['{\n  "city": "Paris"\n}', '{\n  "city": "<b>Oslo</b>"\n}'])
        b.click(".call textarea")
        for text in ("dry", "cold"):
            b.type(text)
            b.key("Enter")
        b.wait("jobs.size === 0 && current.messages.length === 5")
        self.assertEqual(b.text(".msg:last-child .md"), "It is dry and cold.")
        self.assertEqual(b.js("document.querySelectorAll('.call textarea').length"), 0)
        user, calls, *results = s.seen[-1][2]["messages"]
        self.assertEqual([c["id"] for c in calls["tool_calls"]], ["call_0", "call_1"])
        self.assertEqual(calls["tool_calls"][0]["function"], {"name": "look", "arguments": '{"city": "Paris"}'})
        self.assertEqual([(m["tool_call_id"], m["content"]) for m in results], [("call_0", "dry"), ("call_1", "cold")])
        kept = b.js("JSON.stringify(conversationsOf(JSON.stringify([current]))[0].messages)")
        self.assertEqual([m.get("call") for m in json.loads(kept)], [None, None, "call_0", "call_1", None])
        self.assertEqual(json.loads(kept)[1]["calls"][0]["id"], "call_0")

    def test_calls_that_nobody_answers_are_left_out_of_the_next_request(self):
        s, b = self.fake(self.weather), self.browser
        self.ask("Weather?")
        self.assertEqual(b.js("document.querySelectorAll('.call textarea').length"), 2)
        self.ask("Never mind.")
        self.assertEqual([m["content"] for m in s.seen[-1][2]["messages"]], ["Weather?", "Never mind."])
        self.assertEqual(b.js("document.querySelectorAll('.call textarea').length"), 2)  # those of the second answer

    def test_a_form_is_sent_and_a_text_that_is_none_is_said(self):
        s, b = self.fake(lambda h, body: h.say("{}")), self.browser
        self.set(schema='{"type": "object"}')
        self.ask("One")
        self.assertEqual(s.seen[-1][2]["response_format"]["json_schema"]["schema"], {"type": "object"})
        for name, text, part in (("schema", "{", "The form in the settings"), ("tools", "{}", "not a JSON array")):
            self.set(**{"schema": "", "tools": "", name: text})
            n = len(s.seen)
            self.ask("Two")
            self.assertIn(part, b.text("#notice"))
            self.assertEqual([r for r in s.seen[n:] if r[0].endswith("completions")], [])

    def test_calls_without_a_place_are_a_fault(self):
        def answer(h, body):
            h.begin_stream()
            h.delta(tool_calls=[{"index": 1e9, "function": {"name": "x"}}])
            h.end_stream()
        self.fake(answer)
        self.ask("Go")
        self.assertIn("has no place", self.browser.text(".fault"))

    def test_conversations_are_listed_deleted_and_brought_back(self):
        self.fake(lambda h, body: h.say("Yes."))
        b = self.browser
        self.ask("First things")
        b.click("#go-new")
        b.wait("current.messages.length === 0")
        self.ask("Second things")
        self.assertEqual(b.text("#past a").split("\n"), ["Second things", "First things"])
        b.click("#past li:nth-child(2) a")
        b.wait("current.title === 'First things' && document.querySelectorAll('.msg').length === 2")
        b.click("#past [aria-label='Delete Second things']")
        b.wait("document.querySelectorAll('#past li').length === 1")
        b.js("document.querySelector('#notice button').click()")
        b.wait("document.querySelectorAll('#past li').length === 2")

    def test_an_answer_goes_on_while_another_conversation_is_shown(self):
        go = threading.Event()

        def slow(h, body):
            h.begin_stream()
            h.delta(content="begun ")
            go.wait(20)
            h.delta(content="and done")
            h.end_stream()
        self.fake(slow)
        b = self.browser
        self.ask("Slowly", wait=False)
        b.wait("document.querySelector('.md')?.innerText.startsWith('begun')")
        b.click("#go-new")
        b.wait("document.querySelectorAll('.msg').length === 0")
        self.assertTrue(b.js("document.querySelector('#past li').classList.contains('busy')"))
        go.set()
        b.wait("jobs.size === 0")
        b.click("#past a")
        b.wait("document.querySelector('.md')?.innerText === 'begun and done'")

    # ---- going on, searching, files ----

    def test_an_answer_that_was_cut_goes_on(self):
        b = self.browser
        b.js("settings.sampling = {max_tokens: 8, temperature: 0}")
        self.ask("Tell me a story about a fox.")
        first = b.js("current.messages[1].content")
        b.click(".msg.assistant .more")
        b.wait("jobs.size === 0 && current.messages[1].content.length > %d" % len(first))
        whole = self.server.post("/v1/chat/completions",
                                 messages=[{"role": "user", "content": "Tell me a story about a fox."}], max_tokens=16,
                                 temperature=0)[1]["choices"][0]["message"]["content"]
        self.assertEqual(b.js("[current.messages.length, current.messages[1].content]"), [2, whole])
        self.assertEqual(b.js("document.querySelectorAll('.msg').length"), 2)
        self.ask("And then?")
        self.assertEqual(
            b.js("[...document.querySelectorAll('.more')].map(e => e.checkVisibility())"), [False, True])

    def test_what_was_stopped_or_broke_off_goes_on_and_what_is_whole_does_not(self):
        def answer(h, body):
            if body.get("continue_final_message"):
                return h.say(" and the rest.")
            h.begin_stream()
            h.delta(reasoning="Hm.", content="The first part")
            h.raw("")
        s = self.fake(answer)
        b = self.browser
        self.ask("Hello")
        self.assertIn("ended before", b.text(".fault"))
        b.click(".more")
        b.wait("jobs.size === 0 && current.messages[1].finish === 'stop'")
        self.assertEqual(b.text(".msg.assistant .md"), "The first part and the rest.")
        body = s.seen[-1][2]
        self.assertEqual(body["messages"][-1], {"role": "assistant", "content": "The first part"})
        self.assertIs(body["add_generation_prompt"], False)
        self.assertFalse(b.js("document.querySelector('.more').checkVisibility()"))
        self.assertFalse(b.js("document.querySelector('.fault').checkVisibility()"))
        b.js("current.messages[1].stopped = true; showConversation(current)")
        self.assertTrue(b.js("document.querySelector('.more').checkVisibility()"))
        b.errors.clear()

    def test_conversations_are_found_by_their_words(self):
        self.fake(lambda h, body: h.say("A badger <b> and *friends* " + body["messages"][-1]["content"][::-1]))
        b = self.browser
        self.ask("First things")
        self.assertFalse(b.js("$('search').checkVisibility()"))
        b.click("#go-new")
        b.wait("current.messages.length === 0")
        self.ask("Second things")
        for words, found in (("FIRST", ["First things"]), ("things badger", ["Second things", "First things"]),
                             ("sgniht tsr", ["First things"]), ("<b>", ["Second things", "First things"]),
                             ("nowhere", []), ("", ["Second things", "First things"])):
            b.js("$('search').value = ''")
            b.click("#search")
            b.type(words) if words else b.js("$('search').dispatchEvent(new Event('input'))")
            self.assertEqual(b.js("[...document.querySelectorAll('#past a')].map(a => a.title)"), found, words)
        b.click("#search")
        b.type("nowhere")
        self.assertIn("No conversation", b.text("#past-none"))
        b.js("$('search').value = ''")
        b.type("sgniht tsr")
        self.assertIn("<b> and", b.text("#past .excerpt"))
        b.key("Enter")
        b.wait("current.title === 'First things'")
        b.click("#search")
        b.key("Escape")
        self.assertEqual(b.js("document.querySelectorAll('#past a').length"), 2)

    def read_file(self, text, name="talk.json"):
        """What the page says of such a file."""
        b = self.browser
        b.js("tellStorage()")
        b.js("importFile(new File([%s], %s))" % (json.dumps(text), json.dumps(name)))
        b.wait("$('storage-note').textContent.includes(%s)" % json.dumps(name))
        return b.js("$('storage-note').textContent")

    def test_what_is_saved_is_read_again(self):
        self.fake(lambda h, body: h.say("Yes *indeed*.", reasoning="Hm."))
        b = self.browser
        self.ask("First things")
        b.js("history.replaceState(null, '', '#new'); route()")
        self.ask("Second things")
        saved = b.js("""(() => {
            let text;
            const create = URL.createObjectURL;
            URL.createObjectURL = f => { text = f.text(); return 'data:,'; };
            HTMLAnchorElement.prototype.click = () => {};
            exportAll();
            URL.createObjectURL = create;
            return text;
        })()""")
        kept = "[...conversations.values()].sort((a, b) => a.updated - b.updated)"
        before = b.js(kept)
        b.js("for (const id of [...conversations.keys()]) dropConversation(id); location.hash = '#new'")
        self.assertIn("talk.json: 2. 2 conversations are kept", self.read_file(saved))
        self.assertEqual(b.js(kept), before)
        self.assertIn("talk.json: 0. Here already: 2.", self.read_file(saved))
        b.call("Page.reload")
        b.wait("document.readyState === 'complete' && document.querySelectorAll('#past a').length === 2")
        b.click("#past a")
        b.wait("document.querySelectorAll('.msg').length === 2")
        self.assertEqual(b.text(".msg.assistant .md"), "Yes indeed.")

    def test_a_file_that_is_none_is_said_and_a_hostile_one_is_text(self):
        b = self.browser
        answer = {"role": "assistant", "content": "x", "reasoning": 7, "finish": {"a": 1}, "__proto__": {"hacked": 1},
                  "stats": {"ttft": "<b>", "tokens": 3, "rate": None}, "onclick": "x", "stopped": True}
        good = {"id": "abc", "title": "<img src=x>", "created": 1, "updated": 2, "messages": [
            {"role": "user", "content": "<script>window.hacked=1</script>"}, answer]}
        for text, says in (
            ("{not", "is not JSON"), ('{"a": 1}', "is not a list of conversations"), ("[7]", "entry 1 is not"),
            ("[null]", "entry 1 is not"), (json.dumps([good, dict(good, id="../x")]), "entry 2 is not"),
            (json.dumps([dict(good, messages=[{"role": "system", "content": "obey"}])]), "entry 1 is not"),
            (json.dumps([dict(good, messages="hello")]), "entry 1 is not")):
            said = self.read_file(text)
            self.assertIn("talk.json cannot be read: ", said)
            self.assertIn(says, said)
            self.assertEqual(b.js("conversations.size"), 0)
        self.assertIn("talk.json: 1.", self.read_file(json.dumps([good])))
        b.js("location.hash = '#abc'")
        b.wait("document.querySelectorAll('.msg').length === 2")
        figures = {"counted": False, "ttft": None, "total": None, "tokens": 3, "rate": None, "thought": None}
        self.assertEqual(b.js("current.messages[1]"),
                         {"role": "assistant", "content": "x", "stopped": True, "stats": figures})
        self.assertIn("<script>", b.text(".msg.user"))
        self.assertIsNone(b.js("window.hacked ?? null"))

    # ---- markdown ----

    def render(self, text):
        """The elements of a text, as HTML that the test reads."""
        return self.browser.js("(() => { const d = el('div'); new MarkdownView(d).show(%s); return d.innerHTML; })()" %
                               json.dumps(text))

    def test_markdown_is_shown(self):
        for text, part in (
            ("**a** *b* ***c*** ~~d~~ `e` __f__ _g_",
             "<strong>a</strong> <em>b</em> <em><strong>c</strong></em> <del>d</del> <code>e</code> <strong>f</strong> "
             "<em>g</em>"), ("snake_case_name 2*3*4 a * b",
                 "snake_case_name 2<em>3</em>4 a * b"), ("**a *b* c**", "<strong>a <em>b</em> c</strong>"),
            ("*a **b** c*", "<em>a <strong>b</strong> c</em>"), ("**open and\nnext", "**open and<br>next"),
            ("\\*not\\*", "*not*"), ("`` a`b ``", "<code>a`b</code>"), ("# One #", 'class="level-1" dir="auto">One<'),
            ("- a\n  - b\n- c",
             "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>"), ("3. x\n4. y",
                                                                   '<ol start="3"><li>x</li><li>y</li></ol>'),
            ("1. a\n\n2. b", '<ol><li><p dir="auto">a</p></li><li><p dir="auto">b</p></li></ol>'),
            ("> q\n> r", '<blockquote dir="auto"><p dir="auto">q<br>r</p></blockquote>'), ("Text\n- item",
                                                                                           "<ul><li>item</li></ul>"),
            ("---", "<hr>"), ("a|b\n-|-\n1|`x|y`",
                              "<td>1</td><td><code>x|y</code></td>"), ("1. a\n   ```\n   code\n   ```",
                                                                       "<pre tabindex=\"0\"><code>code</code></pre>"),
            ("see https://example.org/a_(b), ok",
             'href="https://example.org/a_(b)"'), ("[x](https://e.org/?a=1&b=2 \"t\")",
                                                   'href="https://e.org/?a=1&amp;b=2"'), ("```py\nx = 1\n", "x = 1"),
            ("[not a link] (x)", "[not a link] (x)"), ("<b>", "&lt;b&gt;"), ("2 < 3 > 1 & 4",
                                                                             "2 &lt; 3 &gt; 1 &amp; 4")):
            self.assertIn(part, self.render(text), text)

    def formula(self, text):
        """The elements of a formula without their attributes."""
        html = self.render(text)
        self.assertIn("<math", html)
        return re.sub(r"(<\w+)[^>]*>", r"\1>", html[html.index("<math"):html.index("</math>")])

    FORMULAS = (
        ("a $x_1^2$ b", "<msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup>"),
        (r"\(\frac12\)", "<mfrac><mn>1</mn><mn>2</mn></mfrac>"),
        (r"$$\sqrt[3]{x+1}$$", "<mroot><mrow><mi>x</mi><mo>+</mo><mn>1</mn></mrow><mn>3</mn></mroot>"),
        ("\\[\n\\sum_{i=0}^n \\alpha_i\n\\]", "<munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>0</mn></mrow>"
         "<mi>n</mi></munderover><msub><mi>α</mi><mi>i</mi></msub>"),
        (r"$\int_0^1 f'(x)$", "<msubsup><mo>∫</mo><mn>0</mn><mn>1</mn></msubsup><msup><mi>f</mi><mo>′</mo></msup>"),
        (r"$\left\{ \frac{a}{b} \right|$", "<mo>{</mo><mfrac><mi>a</mi><mi>b</mi></mfrac><mo>|</mo>"),
        (r"$\mathbb{R}\mathcal{L}\mathbf{x}\mathrm{d}$", "<mi>ℝ</mi><mi>ℒ</mi><mi>𝐱</mi><mi>d</mi>"),
        (r"$$\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$$",
         "<mo>(</mo><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr>"
         "<mtr><mtd><mn>3</mn></mtd><mtd><mn>4</mn></mtd></mtr></mtable><mo>)</mo>"),
        ("\\begin{align*}\na &= b \\\\\n&= c\n\\end{align*}",
         "<mtr><mtd><mi>a</mi></mtd><mtd><mo>=</mo><mi>b</mi></mtd></mtr>"
         "<mtr><mtd></mtd><mtd><mo>=</mo><mi>c</mi></mtd></mtr>"),
        ("$$a \\\\ b$$", "<mtr><mtd><mi>a</mi></mtd></mtr><mtr><mtd><mi>b</mi></mtd></mtr>"),
        (r"$\hat{x}\overset{!}{=}\lim_{n\to\infty}$", "<mover><mi>x</mi><mo>^</mo></mover>"
         "<mover><mo>=</mo><mo>!</mo></mover><munder><mo>lim</mo>"),
        (r"$\text{if } y$", "<mtext>if&nbsp;</mtext><mi>y</mi>"),
        (r"$a \notacommand{b}$", r"<mtext>\notacommand</mtext><mi>b</mi>"),
        (r"$x^{2$", "<msup><mi>x</mi><mn>2</mn></msup>"), (r"$}x$", "<mo>}</mo><mi>x</mi>"), (r"$\frac$", "<mfrac>"))
    NO_FORMULAS = ("$5 and $10", "US$3/C$4", "$20-$30", r"\$x\$", "`$x$`", "$ x $", "$$", "a $$ b", "$x\n\ny$", r"\(x",
                   "\\[x\n\ny\\]", "```\n$$x$$\n```", "$" + "{" * 50 + "$")

    def test_formulas_are_mathml(self):
        for text, parts in self.FORMULAS:
            self.assertIn(parts, self.formula(text), text)
        for text in self.NO_FORMULAS:
            self.assertNotIn("<math", self.render(text), text)
        self.assertIn("<code>" + "{" * 50 + "</code>", self.render("$" + "{" * 50 + "$"))
        self.assertIn("<ul><li>a<div", self.render("- a\n  $$\n  - b\n  $$\n- c"))

    def test_code_is_copied_as_it_is(self):
        code = "if (a < b && c) {\n    puts(\"x\");   // <b>\n}"
        self.fake(lambda h, body: h.say("Look:\n\n```c\n" + code + "\n```\n"))
        b = self.browser
        b.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        self.ask("Code")
        b.click(".code-head button")
        b.wait("document.querySelector('.code-head button').innerText === 'Copied'")
        self.assertEqual(b.js("navigator.clipboard.readText()"), code)
        b.wait("document.querySelector('.code-head button').innerText === 'Copy'")

    def test_text_that_grows_is_shown_as_the_whole_and_blocks_that_are_done_stay(self):
        whole = "# T\n\nSome **bold** and `code`.\n\n- a\n- b\n  1. c\n\n```c\nint x; /* y */\n```\n\n"
        whole += "| a | b |\n|---|---|\n| 1 | 2 |\n\n$$\nx_1\n$$\n\n> $e$nd\n"
        seed = random.randrange(1 << 30)
        print("seed", seed)
        same, kept = self.browser.js("""(() => {
            const text = %s, grown = el('div'), view = new MarkdownView(grown);
            let state = %d, first = null, kept = true;
            for (let n = 0; n < text.length;) {
                state = (state * 1103515245 + 12345) %% 2147483648;
                n = Math.min(text.length, n + 1 + state %% 5);
                view.show(text.slice(0, n));
                if (n > 60) { first ??= grown.children[1]; kept &&= grown.children[1] === first; }
            }
            const whole = el('div');
            new MarkdownView(whole).show(text);
            return [grown.innerHTML === whole.innerHTML, kept];
        })()""" % (json.dumps(whole), seed))
        self.assertTrue(same)
        self.assertTrue(kept)

    def test_text_of_a_model_is_never_markup(self):
        self.fake(lambda h, body: h.say("\n\n".join(ATTACKS), reasoning=
                                        "<img src=http://evil.invalid/r onerror=window.hacked=1>", piece=5))
        b = self.browser
        self.ask("<img src=x onerror=window.hacked=1>")
        b.js("document.querySelector('details.reasoning').open = true")
        for link in range(b.js("document.querySelectorAll('.md a').length")):
            self.assertRegex(b.js("document.querySelectorAll('.md a')[%d].href" % link), r"^(https?|mailto):")
        allowed = ["article", "div", "p", "br", "a", "span", "code", "pre", "button", "svg", "use", "table", "thead",
                   "tbody", "tr", "th", "td", "details", "summary", "b", "i", *MATHML]
        all_of_log = "[...$('log').querySelectorAll('*')]"
        names = b.js("[...new Set(%s.map(e => e.localName))]" % all_of_log)
        self.assertEqual([n for n in names if n not in allowed], [])
        self.assertEqual(b.js(all_of_log + ".filter(e => [...e.attributes].some("
                              "a => a.name.startsWith('on') || a.name === 'style')).length"), 0)
        for text in ("<script>window.hacked=1</script>", "<style>body{display:none}</style>", "&lt;script&gt;"):
            self.assertIn(text, b.text("#log"))
        b.js("document.querySelectorAll('.md a').forEach("
             "a => a.dispatchEvent(new MouseEvent('mouseover', {bubbles: true})))")
        time.sleep(0.1)
        self.assertIsNone(b.js("window.hacked ?? null"))
        self.assertEqual([u for u in b.requests if "evil" in u], [])

    def test_the_policy_refuses_markup_made_of_text_and_foreign_scripts(self):
        b = self.browser
        refused = b.js(
            "(() => { try { document.body.innerHTML = '<b>x</b>'; return false; } catch { return true; } })()")
        self.assertTrue(refused)
        self.assertTrue(b.js("""(() => {
            try {
                const s = document.createElement('script');
                s.text = 'window.hacked = 1';
                document.body.append(s);
            } catch {}
            return window.hacked === undefined;
        })()"""))
        b.errors.clear()

    def test_nothing_is_asked_of_anybody_but_the_server(self):
        self.ask("Hello")
        self.assertEqual([u for u in self.browser.requests if not u.startswith(self.url) and not u.startswith("data:")],
                         [])

    def test_hostile_text_takes_linear_time(self):
        for name, piece in (("brackets", "["), ("links", "[a]("), ("stars", "*a "), ("marks", "**a _b ~~c "),
                            ("ticks", "` `` ``` "), ("quotes", "> "), ("lists", "- "), ("angles", "<http://"),
                            ("urls", "http://a))"), ("pipes", "|a\n|-\n"), ("deep", "  - x\n"), ("rule", "- \t"),
                            ("comment", "```c\n/*"), ("escape", "\\"), ("hash", "# #"), ("images", "![a]("),
                            ("words", "word `a` *b* [c](http://x) "), ("quoted", "> a\n"), ("lines", "a\n\n"), ("dollars", "$a "),
                            ("money", "$5 "), ("displays", "\\[a\n"), ("opened", "\\(a "), ("formulas", "$x_1^2$ "),
                            ("roots", "$\\sqrt{\\frac12}$ "), ("rows", "$$a & b \\\\ c$$\n"), ("begun", "\\begin{align}\n"),
                            ("left", "$\\left("), ("ends", "$$\n")):
            show = """(() => {
                const t = %s.repeat(Math.floor(80000 / %d)), d = el('div'), s = performance.now();
                new MarkdownView(d).show(t);
                return performance.now() - s;
            })()"""

            def ms():
                return self.browser.js(show % (json.dumps(piece), len(piece)))

            self.assertTrue(ms() < 4000 or ms() < 4000,
                            name)  # 80,000 characters take 1 to 500 ms; what was quadratic took 6 to 8 s

    # ---- faults ----

    def expect_fault(self, answer, words):
        self.fake(answer)
        self.ask("Hello")
        self.assertIn(words, self.browser.text(".fault"))
        self.browser.errors.clear()  # the browser's own line for a status of 500

    def test_errors_of_the_server_are_said(self):
        self.expect_fault(
            lambda h, b: h.reply(400, {
                "error": {"message": "top_p: it must be at most 1", "type": "x", "param": "top_p", "code": None}
            }), "400: top_p: it must be at most 1")

    def test_a_full_queue_says_when_to_come_back(self):
        self.expect_fault(lambda h, b: h.reply(429, {"error": {"message": "the queue is full"}}, Retry_After="7"),
                          "429: the queue is full (try again in 7 s)")

    def test_an_error_that_is_not_json_is_said(self):
        self.expect_fault(lambda h, b: h.reply(502, "<html>Bad Gateway", "text/html"), "502")

    def test_a_page_where_a_stream_should_be_is_said(self):
        self.expect_fault(lambda h, b: h.reply(200, "<html>hello", "text/html"), "text/html")

    def test_an_event_that_is_not_json_is_said_and_what_came_stays(self):
        def answer(h, body):
            h.begin_stream()
            h.delta(content="So far")
            h.event("{not json")
            h.raw("")
        self.expect_fault(answer, "not JSON")
        self.assertEqual(self.browser.text(".md"), "So far")

    def test_an_error_in_the_stream_is_said(self):
        def answer(h, body):
            h.begin_stream()
            h.delta(content="So far")
            h.event({"error": {"message": "the device broke", "code": 500}})
            h.event("[DONE]")
            h.raw("")
        self.expect_fault(answer, "the device broke")

    def test_a_stream_that_breaks_off_is_said(self):
        def answer(h, body):
            h.begin_stream()
            h.delta(content="So far")
            h.close_connection = True
        self.expect_fault(answer, "broke off")

    def test_a_stream_that_ends_early_is_said(self):
        def answer(h, body):
            h.begin_stream()
            h.delta(content="So far")
            h.raw("")
        self.expect_fault(answer, "before the server said")

    def test_odd_streams_are_read(self):
        def answer(h, body):
            h.begin_stream()
            h.raw(": comment\r\n\r\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\r\n\r\n")
            text = "data:{\"choices\":[{\"delta\":{\"content\":\"gr\u00fc\u00dfe \U0001f98a\"}}]}\n\n".encode()
            for i in range(len(text)):
                h.raw(text[i:i + 1])
            h.raw("event: x\nid: 3\ndata: null\n\ndata: {\"choices\":[]}\n\n"
                  "data: {\"choices\":[{\"delta\":null}]}\n\ndata: 7\n\n")
            h.end_stream()
        self.fake(answer)
        self.ask("Hello")
        self.assertEqual(self.browser.text(".md"), "gr\u00fc\u00dfe \U0001f98a")
        self.assertFalse(self.browser.js("!!current.messages[1].fault"))

    def test_a_server_that_is_away_is_said(self):
        b = self.browser
        b.js("settings.base = 'http://127.0.0.1:9'; findModels()")
        b.wait("!$('notice').hidden")
        self.assertIn("--allowed-origin " + self.url[:-1], b.text("#notice"))
        self.ask("Hello")
        self.assertIn("does not answer", b.text(".fault"))
        b.errors.clear()

    def test_a_server_with_keys_is_told_the_key(self):
        def models(h):
            known = h.headers.get("Authorization") == "Bearer sesame"
            h.reply(200 if known else 401, {"data": [{"id": "vault"}]} if known else {"error": {"message": "no"}})
        s = self.fake(lambda h, body: h.say("Open."), models=None, get=models)
        b = self.browser
        b.wait("$('notice').innerText.includes('asks for an API key')")
        b.click("#notice button")
        b.wait("$('settings').open && document.activeElement === $('set-key')")
        b.type("sesame")
        b.key("Escape")
        b.wait("$('model').value === 'vault'")
        self.ask("Hello")
        self.assertEqual(s.seen[-1][1]["Authorization"], "Bearer sesame")
        self.assertIsNone(b.js("localStorage.getItem('gyre.key')"))  # only in this tab, unless it is asked for
        b.errors.clear()

    def test_a_key_does_not_go_to_another_server(self):
        b = self.browser
        b.js("keepKey('sesame', true)")
        s = FakeServer(
            lambda h, body: h.say("Hm."), models=None, get=lambda h: (h.server.seen.append(
                (h.path, dict(h.headers), None)), h.reply(200, {"data": [{"id": "other"}]})))
        self.addCleanup(s.__exit__)
        b.click("#open-settings")
        b.wait("$('set-key').value === 'sesame'")
        b.click("#set-base")
        b.type(s.url)
        b.key("Escape")
        b.wait("$('model').value === 'other'")
        self.ask("Hello")
        self.assertEqual([h.get("Authorization") for _, h, _ in s.seen], [None] * len(s.seen))
        self.assertIsNone(b.js("localStorage.getItem('gyre.key')"))

    def test_models_of_a_server_that_was_left_do_not_come_late(self):
        def late(h):
            time.sleep(0.5)
            h.reply(200, {"data": [{"id": "late"}]})
        self.fake(lambda h, b: h.say("x"), models=None, get=late)
        self.fake(lambda h, b: h.say("x"), models=["prompt"])
        b = self.browser
        b.wait("$('model').value === 'prompt'")
        time.sleep(0.8)
        self.assertEqual(b.js("$('model').value"), "prompt")

    def test_a_browser_without_room_says_so(self):
        self.fake(lambda h, body: h.say("x" * 2000))
        b = self.browser
        b.js("for (let n = 1 << 20; n > 100; n >>= 1)"
             " try { for (;;) localStorage.setItem('fill' + Math.random(), 'x'.repeat(n)); } catch {}")
        self.ask("Hello")
        self.assertIn("has no room", b.text("#notice"))
        self.assertEqual(len(self.answers()), 1)

    # ---- looks and keys ----

    def test_light_and_dark_follow_the_system_and_the_button(self):
        b = self.browser
        paper = "getComputedStyle(document.body).backgroundColor"
        b.colours("dark")
        dark = b.js(paper)
        b.colours("light")
        light = b.js(paper)
        self.assertNotEqual(dark, light)
        b.click("#theme")
        self.assertEqual(b.js(paper), light)
        b.click("#theme")
        self.assertEqual(b.js(paper), dark)
        b.open(self.url + "#race")
        self.assertEqual(b.js(paper), dark)  # remembered

    def test_contrast_is_that_of_wcag_aa(self):
        ratio = """((scheme) => {
            document.documentElement.dataset.theme = scheme;
            const probe = el('i'); document.body.append(probe);
            const rgb = name => {
                probe.style.color = `var(--${name})`;
                return getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number);
            };
            const linear = v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
            const light = c => c.reduce((s, v, i) => s + linear(v / 255) * [0.2126, 0.7152, 0.0722][i], 0);
            const pairs = [['ink', 'paper'], ['soft', 'paper'], ['soft', 'side'], ['soft', 'card'], ['ink', 'bubble'],
                           ['accent', 'paper'], ['accent', 'tint'], ['on-accent', 'accent'], ['bad', 'bad-tint'],
                           ['kw', 'code'], ['str', 'code'], ['num', 'code'], ['com', 'code'], ['soft', 'code']];
            const ratio = (x, y) => (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
            const low = pairs.map(([a, b]) => [a, b, ratio(light(rgb(a)), light(rgb(b)))]).filter(p => p[2] < 4.5);
            probe.remove(); return low; })"""
        for scheme in ("light", "dark"):
            self.assertEqual(self.browser.js(ratio + "('%s')" % scheme), [], scheme)

    def test_everything_has_a_name_and_the_tab_key_reaches_it(self):
        b = self.browser
        self.ask("Hello")
        nameless = """[...document.querySelectorAll('button, input, select, textarea, a')].filter(
            e => e.getClientRects().length &&
                !(e.getAttribute('aria-label') || e.innerText?.trim() || e.labels?.length || e.title)
            ).map(e => e.outerHTML)"""
        self.assertEqual(b.js(nameless), [])
        b.click("#open-settings")
        self.assertEqual(b.js(nameless), [])
        b.key("Escape")
        b.open(self.url + "#race")
        b.wait("panes.length === 2")
        self.assertEqual(b.js(nameless), [])
        b.open(self.url + "#new")
        b.js("document.activeElement.blur()")
        reached = set()
        for _ in range(16):
            b.key("Tab")
            reached.add(b.js("document.activeElement.id"))
        self.assertTrue({"go-new", "go-race", "open-settings", "theme", "model", "ask"} <= reached, reached)

    def test_a_phone_has_the_list_behind_a_button_and_nothing_wider_than_itself(self):
        b = self.browser
        self.fake(lambda h, body: h.say("| a | b | c | d | e | f |\n|---|---|---|---|---|---|\n" + "| wide wide wide " *
                                        6 + "|\n\n```\n" + "long " * 60 + "\n```\n\n" + "x" * 300))
        b.window(390, 844, 2, True)
        try:
            self.ask("Hello")
            self.assertEqual(b.js("document.documentElement.scrollWidth"), 390)
            self.assertEqual(b.js("$('chat').scrollWidth <= $('chat').clientWidth"), True)
            b.click("#side-open")
            b.wait("$('side').getBoundingClientRect().left === 0")
            b.key("Escape")
            b.wait("$('side').getBoundingClientRect().right <= 0")
        finally:
            b.window(1280, 860)

    # ---- the race ----

    def test_a_race_of_two_servers_has_figures_and_a_winner(self):
        b = self.browser

        def in_thirds(word, turn):
            def answer(h, body):
                h.begin_stream()
                for _ in range(3):
                    turn.acquire()
                    for _ in range(13):
                        h.delta(content=word + " ")
                h.end_stream({"prompt_tokens": 5, "completion_tokens": 39})
            return answer

        turns = [threading.Semaphore(0), threading.Semaphore(0)]  # so that who is faster is not the machine's affair

        def give(pane, word, third):
            turns[pane].release()
            b.wait("panes[%d].body.innerText.split('%s').length > %d" % (pane, word, 13 * third))

        slow, fast = FakeServer(in_thirds("slow", turns[0]),
                                models=["snail"]), FakeServer(in_thirds("fast", turns[1]), models=["hare"])
        self.addCleanup(fast.__exit__)
        self.addCleanup(slow.__exit__)
        b.js("settings.sampling = {temperature: 0}")
        b.click("#go-race")
        b.wait("panes.length === 2")
        b.js("panes[0].base.value = %s; panes[1].base.value = %s; panes.forEach(p => p.findModels())" %
             (json.dumps(slow.url), json.dumps(fast.url)))
        b.wait("panes[0].model.value === 'snail' && panes[1].model.value === 'hare'")
        self.ask("Go!", wait=False)
        b.wait("racing()")
        begun = time.monotonic()
        for third in (1, 2, 3):
            give(1, "fast", third)
        took = time.monotonic() - begun  # longer than the page saw it take
        for third in (1, 2, 3):
            give(0, "slow", third)
            time.sleep(2 * took if third == 1 else 0)
        b.wait("!racing()")
        self.assertEqual(b.text("#verdict b"), "B wins")
        self.assertEqual(b.text(".pane.won .letter"), "B")
        self.assertEqual([s.seen[0][2]["messages"][0]["content"] for s in (fast, slow)], ["Go!", "Go!"])
        self.assertEqual([s.seen[0][2]["temperature"] for s in (fast, slow)], [0, 0])
        ttft, rate, total, tokens = b.text(".pane.won dd").split("\n")
        self.assertRegex(ttft, r"\d m?s$")
        self.assertEqual(tokens, "39")
        self.assertEqual(b.js("document.querySelectorAll('.pane.won .best').length"), 3,
                         b.text("#verdict") + b.text("#panes dl"))
        self.assertIn("fast fast", b.text(".pane.won .md"))

    def test_an_answer_that_came_at_once_has_no_rate(self):
        def burst(h, body):
            h.begin_stream()
            h.raw("".join("data: " + json.dumps({"choices": [{"delta": {"content": "word "}}]}) + "\n\n"
                          for _ in range(50)))
            h.end_stream({"prompt_tokens": 1, "completion_tokens": 50})
        self.fake(burst)
        self.ask("Hello")
        self.assertNotIn("tok/s", self.browser.text(".stats"))
        self.assertIn("50 tokens", self.browser.text(".stats"))

    def test_a_race_of_two_of_our_servers_across_origins_with_a_key(self):
        other = Server("models/story", "--api-key", "sesame", "--allowed-origin", self.url[:-1], "--served-model-name",
                       "tale")
        self.addCleanup(other.stop)
        b = self.browser
        b.js("settings.sampling = {max_tokens: 20, temperature: 0}")  # drawn, an answer may end before
        b.click("#go-race")
        b.wait("panes.length === 2")
        b.js("panes[1].base.value = 'http://127.0.0.1:%d/v1/'; panes[1].key.value = 'sesame';"
             "panes.forEach(p => p.findModels())" % other.port)
        b.wait("panes[0].model.value === 'story' && panes[1].model.value === 'tale'")
        self.ask("Go!", wait=False)
        b.wait("!racing() && $('verdict').innerText")
        self.assertEqual(b.text(".pane .fault").strip(), "")
        self.assertEqual(b.text(".pane dd").split("\n")[3::4], ["20", "20"])
        b.errors.clear()  # the list of models was first asked for without the key

    def test_a_race_is_stopped_and_a_server_that_fails_has_lost(self):
        b = self.browser
        broken = FakeServer(lambda h, body: h.reply(500, {"error": {"message": "out of breath"}}), models=["x"])
        self.addCleanup(broken.__exit__)
        b.js("settings.sampling = {max_tokens: 20}")
        b.click("#go-race")
        b.wait("panes.length === 2")
        b.js("panes[1].base.value = %s; panes.forEach(p => p.findModels())" % json.dumps(broken.url))
        b.wait("panes[1].model.value === 'x'")
        self.ask("Go!", wait=False)
        b.wait("!racing() && $('verdict').innerText")
        self.assertIn("A wins", b.text("#verdict"))
        self.assertIn("out of breath", b.text(".pane .fault"))
        b.errors.clear()
        endless = FakeServer(lambda h, body: h.say("on and " * 100000, pause=0.05),
                             models=["endless"])  # or it could be over before it is stopped
        self.addCleanup(endless.__exit__)
        b.js("panes[0].base.value = %s; panes[0].findModels()" % json.dumps(endless.url))
        b.wait("panes[0].model.value === 'endless'")
        b.key("Enter")
        b.wait("racing()")
        b.click("#send")
        b.wait("!racing()")
        self.assertIn("Stopped", b.text("#verdict"))
        b.errors.clear()


if __name__ == "__main__":
    unittest.main()
