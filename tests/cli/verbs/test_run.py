"""gyre run, score and perplexity as a person, a script and a pipe call them."""
import json, math, os, pty, re, select, shutil, signal, subprocess, tempfile, time, unittest

from patience import PATIENCE

from brief import slow, some_of
from places import ROOT

GYRE = os.path.abspath(os.environ["GYRE"])
os.environ["GYRE_THREADS"] = "1"  # tests run side by side, one a processor
STORY = os.path.join(ROOT, "models/story")
GEMMA = os.path.join(ROOT, "tests/models/gemma3")


def load(path):
    with open(path) as f:
        return json.load(f)


GOLDEN = load(os.path.join(STORY, "golden.json"))
CASE = GOLDEN["cases"][0]
GREEDY = ["--temperature", "0", "--ignore-eos"]


def gyre(*args, **more):
    return subprocess.run([GYRE, *args], capture_output=True, text=True, timeout=120, **more)


def run_json(*args, model=STORY):
    p = gyre("run", model, *args, "--output", "json")
    if p.returncode != 0:
        raise AssertionError(p.stderr)
    return json.loads(p.stdout)


def batch(verb, lines, *flags, model=STORY):
    """Lines are objects, or texts that are sent as they are."""
    text = "".join((l if isinstance(l, str) else json.dumps(l)) + "\n" for l in lines)
    p = gyre(verb, model, "--batch", *flags, input=text)
    if p.returncode != 0:
        raise AssertionError(p.stderr)
    return [json.loads(l) for l in p.stdout.splitlines()]


class OnePrompt(unittest.TestCase):
    def test_text_ids_and_json_tell_the_same(self):
        o = run_json("--no-chat", "-p", CASE["prompt"], "-n", "40", *GREEDY)
        self.assertEqual((o["prompt_ids"], o["ids"], o["text"]), (CASE["ids"], CASE["greedy"], CASE["greedy_text"]))
        self.assertEqual(list(o), ["prompt_ids", "ids", "text", "finish_reason", "timings"])
        self.assertEqual(o["finish_reason"], "length")
        t = gyre("run", STORY, "--no-chat", "-p", CASE["prompt"], "-n", "40", *GREEDY)
        self.assertEqual(t.stdout, CASE["greedy_text"] + "\n")
        self.assertRegex(t.stderr, r"^prompt 4 tokens, [0-9.]+ tok/s; decode 40 tokens, [0-9.]+ tok/s; loaded in .*\n$")
        i = gyre("run", STORY, "--no-chat", "-p", CASE["prompt"], "-n", "40", *GREEDY, "--output", "ids")
        self.assertEqual(i.stdout, ",".join(map(str, CASE["greedy"])) + "\n")

    def test_a_prompt_from_a_file_or_a_pipe_or_as_ids(self):
        want = run_json("--no-chat", "-p", CASE["prompt"], "-n", "5", *GREEDY)["ids"]
        with tempfile.NamedTemporaryFile("w") as f:
            f.write(CASE["prompt"])
            f.flush()
            self.assertEqual(run_json("--no-chat", "-f", f.name, "-n", "5", *GREEDY)["ids"], want)
        p = gyre("run", STORY, "--no-chat", "-f", "-", "-n", "5", *GREEDY, "--output", "ids", input=CASE["prompt"])
        self.assertEqual(p.stdout.strip(), ",".join(map(str, want)))
        self.assertEqual(run_json("--prompt-ids", ",".join(map(str, CASE["ids"])), "-n", "5", *GREEDY)["ids"], want)
        self.assertEqual(run_json(CASE["prompt"], "--no-chat", "-n", "5", *GREEDY)["ids"], want)

    def test_text_goes_through_the_template_and_data_does_not(self):
        chat = GOLDEN["cases"][4]
        question = "Tell me a story about dog and ball."
        self.assertEqual(run_json("--chat", "-p", question, "-n", "8", *GREEDY)["prompt_ids"], chat["ids"])
        self.assertNotEqual(run_json("-p", question, "-n", "8", *GREEDY)["prompt_ids"], chat["ids"])
        text = gyre("run", STORY, "-p", question, "-n", "40", *GREEDY).stdout
        self.assertEqual(text.strip(), chat["greedy_text"].strip())
        with_system = run_json("--chat", "--system", "Be brief.", "-p", question, "-n", "1")["prompt_ids"]
        self.assertGreater(len(with_system), len(chat["ids"]))

    def test_the_same_seed_gives_the_same_answer(self):
        a, b, c = (run_json("--no-chat", "-p", "Once", "-n", "30", "--temperature", "1", "--seed", s)["ids"]
                   for s in "778")
        self.assertEqual(a, b)
        self.assertNotEqual(a, c)
        random = {tuple(run_json("--no-chat", "-p", "Once", "-n", "30", "--temperature", "1")["ids"]) for _ in range(3)}
        self.assertGreater(len(random), 1)

    def test_however_the_prompt_is_cut(self):
        long = GOLDEN["cases"][5]
        for flags in some_of([["--max-num-batched-tokens", "1"],
                              ["--max-num-batched-tokens", "7", "--block-size", "4"],
                              ["--max-num-batched-tokens", "64", "--block-size", "16", "--threads", "2"]]):
            o = run_json("--prompt-ids", ",".join(map(str, long["ids"])), "-n", "5", *GREEDY, *flags)
            self.assertEqual(o["ids"], long["greedy"][:5], flags)

    def test_a_stop_string_ends_the_text_before_it(self):
        o = run_json("--no-chat", "-p", CASE["prompt"], "-n", "40", *GREEDY, "--stop", "toys all", "--stop",
                     "never there")
        self.assertEqual(o["text"], CASE["greedy_text"].split("toys all")[0])
        self.assertEqual(o["finish_reason"], "stop")
        self.assertLess(len(o["ids"]), 40)
        late = run_json("--no-chat", "-p", CASE["prompt"], "-n", "40", *GREEDY, "--stop", " was", "--min-tokens", "20")
        self.assertGreater(late["text"].count(" was"), 0)
        self.assertEqual(late["finish_reason"], "stop")

    @slow("it writes a whole story")
    def test_the_end_of_sequence_token_ends_the_answer_unseen(self):
        o = run_json("--chat", "-p", "Tell me a story about dog and ball.", "--temperature", "0.7", "--seed", "3")
        self.assertIn(o["finish_reason"], ("stop", "length"))
        if o["finish_reason"] == "stop":
            self.assertIn(o["ids"][-1], (0, 2))
        self.assertNotIn("<|", o["text"])

    def test_text_comes_token_by_token_in_whole_characters(self):
        p = subprocess.Popen([GYRE, "run", STORY, "--no-chat", "-p", CASE["prompt"], "-n", "300", *GREEDY],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        pieces = []
        while True:
            data = os.read(p.stdout.fileno(), 65536)
            if not data:
                break
            data.decode()  # raises when a piece ends inside a character
            pieces.append(data)
        p.stdout.close()
        self.assertEqual(p.wait(), 0)
        self.assertGreater(len(pieces), 20)


class Refusals(unittest.TestCase):
    def refused(self, code, *args, says):
        p = gyre(*args)
        self.assertEqual((p.returncode, p.stdout), (code, ""), p.stderr)
        self.assertIn(says, p.stderr)
        if code == 1:
            self.assertEqual(p.stderr.count("\n"), 1, p.stderr)

    def test_faults_are_one_sentence(self):
        self.refused(1, "run", "/nowhere", "-p", "a", says="/nowhere")
        self.refused(1, "run", STORY, "--prompt-ids", "5,4096", says="prompt")
        self.refused(1, "run", STORY, "--no-chat", "-p", "", says="empty")
        self.refused(1, "run", STORY, "-f", "/nowhere.txt", says="/nowhere.txt")
        self.refused(1, "run", STORY, "-p", "a", "--block-size", "48", says="block_size")
        self.refused(1, "score", STORY, "--prompt-ids", "", says="empty")
        self.refused(1, "perplexity", STORY, "-f", os.path.join(STORY, "config.json"), "--window", "900",
                     says="window of 900")

    def test_a_context_that_is_too_short_is_said_with_the_numbers(self):
        self.refused(1, "run", STORY, "--no-chat", "-p", "Once upon a time", "-n", "2000",
                     says="a prompt of 4 leaves 1020, and the answer may have 2000")
        self.refused(1, "run", STORY, "--no-chat", "-p", "Once " * 1500, says="maximum context length is 1024 tokens")
        self.refused(1, "run", STORY, "--no-chat", "-p", "Once upon a time", "-n", "70", "--max-model-len", "64",
                     says="64 tokens")

    def test_misuse_is_exit_code_2(self):
        self.refused(2, "run", STORY, "-p", "a", "--prompt-ids", "1", says="one prompt")
        self.refused(2, "run", STORY, "a", "-p", "b", says="one prompt")
        self.refused(2, "run", STORY, "a", "b", says="b is one argument too many")
        self.refused(2, "run", STORY, says="needs a prompt")
        self.refused(2, "run", STORY, "-p", "a", "--temprature", "1", says="temperature")
        self.refused(2, "run", STORY, "-p", "a", "--device", "abacus", says="cpu")
        self.refused(2, "score", STORY, says="one of")
        self.refused(2, "perplexity", STORY, says="-f FILE")
        self.refused(2, "perplexity", STORY, "-f", "x", "--cache-cost", says="--kv-cache-dtype")


class Story(unittest.TestCase):
    @slow("eight stories of 300 tokens")
    def test_it_says_how_it_is_to_be_drawn(self):
        """What a request leaves out is as its generation_config.json says: warm enough for a story, and it ends where a
        text does."""
        info = json.loads(gyre("info", STORY, "--output", "json").stdout)
        self.assertEqual(info["sampling"], {"do_sample": True, "temperature": 0.6})
        self.assertLessEqual({0, 2}, set(info["tokens"]["eos"]))
        def ask(*flags):
            p = gyre("run", STORY, "--chat", "-p", "Tell me a story.", "-n", "300", "--output", "json", *flags)
            return json.loads(p.stdout)["ids"]
        for seed in "1", "2", "3":
            drawn = ask("--seed", seed)
            self.assertEqual(drawn, ask("--seed", seed, "--temperature", "0.6"))
            self.assertFalse({0, 1, 2} & set(drawn[:-1]), "it goes on behind its end")
        self.assertNotEqual(ask("--seed", "1"), ask("--seed", "1", "--temperature", "1"))


class Batch(unittest.TestCase):
    def test_lines_share_steps_and_are_answered_in_order(self):
        lines = [{"prompt_ids": c["ids"], "max_tokens": 5 + 7 * (i % 5), "temperature": 0, "ignore_eos": True}
                 for i, c in enumerate(GOLDEN["cases"] * 3)]
        for flags in some_of([[], ["--max-num-seqs", "4", "--max-num-batched-tokens", "9", "--block-size", "8"]]):
            for line, case, o in zip(lines, GOLDEN["cases"] * 3, batch("run", lines, *flags)):
                self.assertEqual(o["prompt_ids"], case["ids"])
                self.assertEqual(o["ids"], case["greedy"][:line["max_tokens"]])

    def test_a_seed_gives_the_same_tokens_alone_and_in_company(self):
        lines = [{
            "prompt": "Once upon a time", "max_tokens": 20, "temperature": 1, "seed": i % 4, "top_p": 0.9, "top_k": 50
        } for i in range(12)]
        together = [o["ids"] for o in batch("run", lines)]
        alone = [batch("run", [l])[0]["ids"] for l in lines[:4]]
        self.assertEqual(together, alone * 3)

    def test_a_faulty_line_gives_an_error_and_the_rest_go_on(self):
        good = {"prompt": "Once upon a time", "max_tokens": 3, "temperature": 0}
        lines = [good, "{broken", {"prompt": "a", "max_tokns": 3}, {"max_tokens": 3}, {"prompt_ids": [1, 99999]},
                 {"prompt": "a", "temperature": "hot"}, {"prompt": "a", "max_tokens": 5000}, [1], {"prompt": ""},
                 {"prompt": "a", "logit_bias": {"9999": 1}}, {"prompt": "a", "temperature": -1}, good]
        words = [
            None, "line 2", "max_tokns", "prompt", "99999", "temperature", "1024", "object", "empty", "logit_bias",
            "temperature", None
        ]
        answers = batch("run", lines)
        self.assertEqual(len(answers), len(lines))
        for word, o in zip(words, answers):
            if word is None:
                self.assertEqual(o["ids"], CASE["greedy"][:3])
            else:
                self.assertEqual(list(o), ["error"])
                self.assertIn(word, o["error"])

    def test_a_program_can_ask_and_wait(self):
        with subprocess.Popen([GYRE, "run", STORY, "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as p:
            for n in (1, 4, 2):
                p.stdin.write(json.dumps({"prompt": "Once upon a time", "max_tokens": n, "temperature": 0}) + "\n")
                p.stdin.flush()
                self.assertEqual(json.loads(p.stdout.readline())["ids"], CASE["greedy"][:n])
            p.stdin.close()
            self.assertEqual(p.wait(), 0)

    def test_what_a_line_does_not_say_is_as_the_flags_say(self):
        a, b = batch("run", [{"prompt": "Once upon a time"}, {"prompt": "Once upon a time", "max_tokens": 2}], "-n",
                     "6", "--temperature", "0", "--stop", "little")
        self.assertEqual(a["text"], ", there was a ")
        self.assertEqual(b["ids"], CASE["greedy"][:2])

    def test_fields_do_what_they_say(self):
        base = {"prompt_ids": CASE["ids"], "max_tokens": 8, "temperature": 0}
        first, second = CASE["greedy"][:2]
        plain, biased, stopped, scored, penalised = batch("run", [
            base, {**base, "logit_bias": {str(first): -100}}, {**base, "stop_token_ids": [second]}, {
                                              **base, "logprobs": True, "top_logprobs": 3
                                          }, {**base, "max_tokens": 40, "frequency_penalty": 2, "presence_penalty": 2}
        ])
        self.assertEqual(plain["ids"], CASE["greedy"][:8])
        self.assertNotIn(first, biased["ids"])
        self.assertEqual((stopped["ids"], stopped["finish_reason"]), ([first, second], "stop"))
        self.assertEqual([t["id"] for t in scored["logprobs"]], scored["ids"])
        for t, (a, margin) in zip(scored["logprobs"], zip(scored["ids"], CASE["greedy_margin"])):
            self.assertEqual(t["top"][0]["id"], a)
            self.assertAlmostEqual(t["top"][0]["logprob"] - t["top"][1]["logprob"], margin, delta=2e-3)
        self.assertGreater(len(set(penalised["ids"])), len(set(CASE["greedy"])) + 5)


class Score(unittest.TestCase):
    def test_text_ids_and_batch_agree(self):
        ids = ",".join(map(str, CASE["ids"]))
        o = json.loads(gyre("score", STORY, "--prompt-ids", ids, "--output", "json").stdout)
        self.assertEqual(list(o), ["token_logprobs", "argmax", "last_logits"])
        self.assertEqual((len(o["token_logprobs"]), o["argmax"], len(o["last_logits"])), (3, CASE["argmax"], 4096))
        self.assertEqual(json.loads(gyre("score", STORY, "-p", CASE["prompt"]).stdout), o)
        lines = [{"prompt_ids": CASE["ids"]}, {"prompt": CASE["prompt"]}, {"prompt": "a", "temperature": 1},
                 {"prompt_ids": [7]}]
        a, b, bad, one = batch("score", lines)
        self.assertEqual(a["argmax"], o["argmax"])
        self.assertLess(max(abs(x - y) for x, y in zip(a["last_logits"], o["last_logits"])), 1e-4)
        self.assertEqual(b["argmax"], o["argmax"])
        self.assertIn("temperature", bad["error"])
        self.assertEqual((one["token_logprobs"], len(one["argmax"])), ([], 1))

    def test_a_table_for_people(self):
        p = gyre("score", STORY, "-p", CASE["prompt"], "--output", "text")
        self.assertEqual(p.returncode, 0)
        sums = re.search(r"sum (-[0-9.]+) over 3 tokens, perplexity ([0-9.]+)", p.stdout)
        self.assertAlmostEqual(float(sums[1]), sum(CASE["token_logprobs"]), delta=1e-3)


class Perplexity(unittest.TestCase):
    def setUp(self):
        self.file = tempfile.NamedTemporaryFile("w", suffix=".txt")
        self.file.write(GOLDEN["cases"][5]["prompt"])
        self.file.flush()
        self.ids = GOLDEN["cases"][5]["ids"]  # this tokenizer adds nothing, so they are those of the file

    def tearDown(self):
        self.file.close()

    def measure(self, *args, model=STORY):
        p = gyre("perplexity", model, "-f", self.file.name, *args)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(p.stderr, "")
        m = re.fullmatch(r"perplexity ([0-9.]+) over (\d+) tokens", p.stdout.splitlines()[-1])
        return float(m[1]), int(m[2])

    def by_score(self, spans):
        """The same from score: spans are (start, end, first scored) of tokens."""
        answers = batch("score", [{"prompt_ids": self.ids[s:e]} for s, e, _ in spans])
        lps = [lp for (s, e, first), o in zip(spans, answers) for lp in o["token_logprobs"][first - 1:]]
        return math.exp(-sum(lps) / len(lps)), len(lps)

    def test_windows_side_by_side(self):
        ppl, n = self.by_score([(0, 100, 1), (100, 200, 1), (200, 300, 1)])
        got = self.measure("--window", "100")
        self.assertAlmostEqual(got[0], ppl, delta=2e-3)
        self.assertEqual((got[1], n), (297, 297))

    def test_windows_that_overlap_score_each_token_once(self):
        ppl, n = self.by_score([(0, 120, 1), (80, 200, 40), (160, 280, 40), (240, 360, 40)])
        got = self.measure("--window", "120", "--stride", "80", "--max-num-seqs", "3")
        self.assertAlmostEqual(got[0], ppl, delta=2e-3)
        self.assertEqual((got[1], n), (119 + 80 * 3, 119 + 80 * 3))

    def test_a_bos_scores_the_first_token_too(self):
        _, n = self.measure("--window", "64", "--bos", model=GEMMA)
        self.assertEqual(n % 64, 0)
        _, without = self.measure("--window", "64", model=GEMMA)
        self.assertEqual(without, n - n // 64)

    def test_what_a_cache_of_four_bits_costs_is_told(self):
        args = ("--window", "100", "--kv-cache-dtype", "int4")
        usual, four = self.measure("--window", "100")[0], self.measure(*args)[0]
        told = gyre("perplexity", STORY, "-f", self.file.name, *args, "--cache-cost").stdout
        self.assertEqual(told.splitlines()[1], f"perplexity {four:.4f} over 297 tokens")
        m = re.match(r"perplexity ([0-9.]+) with keys and values as the device computes: int4 costs ([-+0-9.]+) %\n",
                     told)
        self.assertTrue(m, told)
        self.assertEqual(float(m[1]), usual)
        self.assertAlmostEqual(float(m[2]), 100 * (four / usual - 1), delta=0.0051 + 0.02 / usual)
        self.assertNotEqual(four, usual)


class Dummy(unittest.TestCase):
    def test_random_weights_need_only_a_config(self):
        with tempfile.TemporaryDirectory() as d:
            with open(os.path.join(d, "config.json"), "w") as f:
                json.dump({**load(os.path.join(GEMMA, "config.json")), "num_hidden_layers": 6}, f)
            o = run_json("--prompt-ids", "5,6,7", "-n", "4", "--ignore-eos", "--load-format", "dummy", model=d)
            self.assertEqual((len(o["ids"]), o["text"]), (4, None))
            p = gyre("run", d, "-p", "a", "--load-format", "dummy")
            self.assertEqual(p.returncode, 1)


class WithoutATokenizer(unittest.TestCase):
    """tests/models_random: folders that hold config.json, weights and reference, and nothing of text."""

    MODEL = os.path.join(ROOT, "tests/models_random/qwen3_bias")

    def setUp(self):
        self.case = load(os.path.join(self.MODEL, "golden.json"))["cases"][0]
        self.ids = ",".join(map(str, self.case["ids"]))

    def test_ids_in_and_ids_out(self):
        p = gyre("run", self.MODEL, "--prompt-ids", self.ids, "-n", "8", "--temperature", "0", "--output", "ids")
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        self.assertEqual([int(i) for i in p.stdout.split(",")], self.case["greedy"])
        o = run_json("--prompt-ids", self.ids, "-n", "8", "--temperature", "0", model=self.MODEL)
        self.assertEqual((o["ids"], o["text"]), (self.case["greedy"], None))

    def test_score(self):
        p = gyre("score", self.MODEL, "--prompt-ids", self.ids, "--output", "json")
        self.assertEqual(json.loads(p.stdout)["argmax"], self.case["argmax"])

    def test_batch_lines_that_need_text_are_errors(self):
        lines = batch("run", [{"prompt_ids": self.case["ids"], "max_tokens": 8, "temperature": 0},
                              {"prompt": "a"}, {"prompt_ids": [5], "stop": ["a"]}], model=self.MODEL)
        self.assertEqual(lines[0]["ids"], self.case["greedy"])
        self.assertIn("no tokenizer", lines[1]["error"])
        self.assertIn("no tokenizer", lines[2]["error"])

    def test_text_is_refused(self):
        for args in (["-p", "a"], ["--prompt-ids", "5"], ["--prompt-ids", "5", "--output", "ids", "--stop", "a"]):
            p = gyre("run", self.MODEL, *args)
            self.assertEqual(p.returncode, 1)
            self.assertIn("no tokenizer", p.stderr)

    def test_a_faulty_tokenizer_is_an_error_all_the_same(self):
        with tempfile.TemporaryDirectory() as d:
            for f in os.listdir(self.MODEL):
                shutil.copyfile(os.path.join(self.MODEL, f), os.path.join(d, f))
            with open(os.path.join(d, "tokenizer.json"), "w") as f:
                f.write("{")
            p = gyre("run", d, "--prompt-ids", "5", "-n", "1", "--output", "ids")
            self.assertEqual(p.returncode, 1)
            self.assertIn("tokenizer.json", p.stderr)


class Conversation(unittest.TestCase):
    """On a pseudo-terminal, as a person types."""

    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="dumb", GYRE_HISTORY=os.path.join(self.dir, "history"), LC_ALL="C.UTF-8")
            os.execv(GYRE, [GYRE, "run", STORY, "--temperature", "0", "-n", "900", "--ignore-eos"])
        self.seen = ""
        self.wait_for("> $")

    def tearDown(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self.fd)
        subprocess.run(["rm", "-rf", self.dir])

    def wait_for(self, pattern, seconds=PATIENCE):
        """Reads until what came since the last call matches; returns it. A pattern for the end waits for silence."""
        end, text = time.time() + seconds, ""
        while time.time() < end:
            ready = select.select([self.fd], [], [], 0.05)[0]
            if ready:
                try:
                    text += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    break
            if re.search(pattern, text) and not (ready and pattern.endswith("$")):
                return text
        raise AssertionError("no %r in %r" % (pattern, text))

    def type(self, text):
        os.write(self.fd, text.encode())

    def test_it_stops_remembers_and_saves(self):
        saved = os.path.join(self.dir, "saved.json")
        self.type("Tell me a story about dog and ball.\r")
        self.wait_for("Once upon a time")
        self.type("\x03")
        self.assertIn("stopped", self.wait_for(r"tok/s.*\s+> $"))
        self.type("/save %s\r" % saved)
        self.wait_for("> $")
        messages = load(saved)
        self.assertEqual([m["role"] for m in messages], ["user", "assistant"])
        self.assertTrue(GOLDEN["cases"][4]["greedy_text"].startswith(messages[1]["content"][:30]))
        self.type("thrown away\x03")
        self.wait_for("> $")
        self.type("/frobnicate\r")
        self.assertIn("no command /frobnicate", self.wait_for("> $"))
        self.type("/system You are a fox.\r")
        self.wait_for("> $")
        self.type("/save %s\r" % saved)
        self.wait_for("> $")
        self.assertEqual(load(saved), [{"role": "system", "content": "You are a fox."}])
        self.type("/exit\r")
        self.assertEqual(os.waitpid(self.pid, 0)[1], 0)
        with open(os.path.join(self.dir, "history")) as f:
            self.assertIn("story", f.read())


if __name__ == "__main__":
    unittest.main()
