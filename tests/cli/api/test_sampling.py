"""Draws of a server against a sampler written here from the manual (src/core/sample.h), with fresh random settings each
run.

The logits come from `gyre score`; everything after them is computed twice. Greedy answers must be equal, drawn tokens
must lie in what top_k, top_p and min_p leave, and their frequencies must pass a chi-square test.
"""
import json
import math
import os
import random
import subprocess
import unittest

from brief import slow
from serving import GYRE, ROOT, Server

MODEL, VOCAB = "tests/models/qwen3", 1024
SEED = int(os.environ.get("GYRE_TEST_SEED", random.randrange(2 ** 32)))


def setUpModule():
    global server, rng
    print("GYRE_TEST_SEED=%d" % SEED)
    rng = random.Random(SEED)
    server = Server(MODEL)


def tearDownModule():
    assert server.stop() == 0


def logits_after(sequences):
    lines = "".join(json.dumps({"prompt_ids": s}) + "\n" for s in sequences)
    p = subprocess.run([GYRE, "score", os.path.join(ROOT, MODEL), "--batch", "--threads", "1"], input=lines,
                       capture_output=True, text=True, timeout=120)
    assert p.returncode == 0, p.stderr
    return [json.loads(line)["last_logits"] for line in p.stdout.splitlines()]


def changed(logits, prompt, made, q):
    """Bias, what may not come, penalties."""
    x = list(logits)
    for token, bias in q.get("logit_bias", {}).items():
        x[int(token)] += bias
    if "allowed_token_ids" in q:
        x = [v if t in q["allowed_token_ids"] else -math.inf for t, v in enumerate(x)]
    if len(made) < q.get("min_tokens", 0):
        for t in [2] + q.get("stop_token_ids", []):
            x[t] = -math.inf
    for t in set(prompt) | set(made):
        r = q.get("repetition_penalty", 1)
        x[t] = x[t] / r if x[t] > 0 else x[t] * r
    for t in set(made):
        x[t] -= q.get("presence_penalty", 0) + q.get("frequency_penalty", 0) * made.count(t)
    return x


def kept(x, q):
    """Token to probability after temperature, min_p, top_k and top_p; with it the distance to the nearest threshold."""
    best = max(x)
    p = {t: math.exp((v - best) / q["temperature"]) for t, v in enumerate(x)}
    near = min(abs(v - q["min_p"]) for v in p.values()) if q.get("min_p") else 1
    p = {t: v for t, v in p.items() if v >= q.get("min_p", 0)}
    order = sorted(p, key=lambda t: (-x[t], t))
    if q.get("top_k", 0) > 0:
        if q["top_k"] < len(order):
            near = min(near, x[order[q["top_k"] - 1]] - x[order[q["top_k"]]])
        order = order[:q["top_k"]]
    total, sum_, out = sum(p[t] for t in order), 0, []
    for t in order:
        if sum_ >= q.get("top_p", 1) * total:
            break
        sum_ += p[t]
        near = min(near, abs(sum_ / total - q["top_p"])) if q.get("top_p", 1) < 1 else near
        out.append(t)
    return {t: p[t] / sum_ for t in out}, near


def random_ids(n):
    return [rng.randrange(3, VOCAB) for _ in range(n)]


def random_changes():
    q = {}
    if rng.random() < 0.6:
        q["logit_bias"] = {str(t): round(rng.uniform(-8, 8), 3) for t in random_ids(20)}
    if rng.random() < 0.3:
        q["allowed_token_ids"] = random_ids(60)
    if rng.random() < 0.6:
        q["repetition_penalty"] = round(rng.choice([rng.uniform(0.6, 1), rng.uniform(1, 1.8)]), 3)
    if rng.random() < 0.6:
        q["presence_penalty"] = round(rng.uniform(-2, 2), 3)
    if rng.random() < 0.6:
        q["frequency_penalty"] = round(rng.uniform(-2, 2), 3)
    if rng.random() < 0.4:
        q["min_tokens"], q["stop_token_ids"] = rng.randrange(1, 6), random_ids(40)
    return q


class Sampling(unittest.TestCase):
    def ask(self, **q):
        status, r = server.post("/v1/completions", return_token_ids=True, ignore_eos=False, **q)
        self.assertEqual(status, 200, r)
        return [c["token_ids"] for c in r["choices"]]

    def test_greedy_answers_are_the_argmax_of_the_changed_logits(self):
        judged = 0
        for _ in range(10):
            q, prompt = random_changes(), random_ids(rng.randrange(1, 20))
            made = self.ask(prompt=prompt, temperature=0, max_tokens=12, **q)[0]
            for i, row in enumerate(logits_after([prompt + made[:i] for i in range(len(made))])):
                x = changed(row, prompt, made[:i], q)
                second, best = sorted(x)[-2:]
                if best - second > 1e-3:
                    self.assertEqual(made[i], x.index(best), "step %d of %s" % (i, q))
                    judged += 1
        self.assertGreater(judged, 40)

    def test_drawn_tokens_lie_in_what_is_left(self):
        judged = 0
        for _ in range(10):
            q, prompt = random_changes(), random_ids(rng.randrange(1, 20))
            q.update(temperature=rng.choice([0.05, 0.7, 1, 1.6, 30]), top_k=rng.choice([-1, 0, 1, 3, 40, 5000]),
                     top_p=rng.choice([1, 0.9, 0.4, 0.01]), min_p=rng.choice([0, 0, 0.05, 0.5, 1]))
            made = self.ask(prompt=prompt, max_tokens=12, seed=rng.randrange(2 ** 31), **q)[0]
            for i, row in enumerate(logits_after([prompt + made[:i] for i in range(len(made))])):
                p, near = kept(changed(row, prompt, made[:i], q), q)
                if near > 1e-4:
                    self.assertIn(made[i], p, "step %d of %s" % (i, q))
                    judged += 1
        self.assertGreater(judged, 40)

    @slow("it draws many tokens")
    def test_frequencies_pass_a_chi_square_test(self):
        for _ in range(5):
            q, prompt = random_changes(), random_ids(5)
            q.update(temperature=round(rng.uniform(0.5, 1.5), 2), top_k=rng.choice([0, 12, 100]),
                     top_p=rng.choice([1, 0.95, 0.6]), min_p=rng.choice([0, 0.02]))
            p, near = kept(changed(logits_after([prompt])[0], prompt, [], q), q)
            if near < 1e-4:
                continue
            seen, seed = {}, rng.randrange(2 ** 40)
            for part in range(12):
                for made in self.ask(prompt=prompt, max_tokens=max(1, q.get("min_tokens", 1)), n=128,
                                     seed=seed + 128 * part, **q):
                    seen[made[0]] = seen.get(made[0], 0) + 1
            n = sum(seen.values())
            self.assertLessEqual(set(seen), set(p), q)
            often = [t for t in p if p[t] * n >= 5]
            cells = [(seen.get(t, 0), p[t] * n) for t in often]
            rest = 1 - sum(p[t] for t in often)
            if rest * n >= 5:
                cells.append((n - sum(c[0] for c in cells), rest * n))
            if len(cells) < 2:
                continue
            chi2, df = sum((a - b) ** 2 / b for a, b in cells), len(cells) - 1
            z = ((chi2 / df) ** (1 / 3) - (1 - 2 / (9 * df))) / math.sqrt(2 / (9 * df))  # Wilson and Hilferty
            self.assertLess(z, 4.75, "one in a million; chi-square %.1f of %d, %s" % (chi2, df, q))

    def test_a_bad_word_is_banned_where_it_would_be_complete(self):
        prompt = server.post("/tokenize", prompt="Once upon a time there was a")[1]["tokens"]
        words = ["little", "girl", "very happy", "friend"]
        spellings = [
            server.post("/tokenize", prompt=w, add_special_tokens=False)[1]["tokens"]
            for v in words
            for w in (v, " " + v)
        ]
        free = self.ask(prompt=prompt, temperature=0, max_tokens=60)[0]
        made = self.ask(prompt=prompt, temperature=0, max_tokens=60, bad_words=words)[0]
        self.assertTrue(any(free[i:i + len(s)] == s for s in spellings for i in range(len(free))))
        self.assertFalse(any(made[i:i + len(s)] == s for s in spellings for i in range(len(made))))
        for i, row in enumerate(logits_after([prompt + made[:i] for i in range(len(made))])):
            banned = {s[-1] for s in spellings if made[max(0, i - len(s) + 1):i] == s[:-1]}
            x = [-math.inf if t in banned else v for t, v in enumerate(row)]
            second, best = sorted(x)[-2:]
            if best - second > 1e-3:
                self.assertEqual(made[i], x.index(best))

    def test_the_same_seed_draws_the_same_in_any_company(self):
        q = dict(prompt=random_ids(9), temperature=1.3, top_p=0.9, max_tokens=20, seed=rng.randrange(2 ** 62))
        alone = self.ask(**q)[0]
        self.assertEqual(self.ask(n=7, **q)[0], alone)
        self.assertEqual(self.ask(**dict(q, seed=-5))[0], self.ask(**dict(q, seed=-5))[0])


if __name__ == "__main__":
    unittest.main()
