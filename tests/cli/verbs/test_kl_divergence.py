"""gyre perplexity --kl-divergence: what is told of two models' distributions is what their base files give, computed
here by itself from llama.cpp's layout."""
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

from brief import slow
from packages import ROOT
from test_quantize import GYRE, gyre

MODEL = os.path.join(ROOT, "tests/models/llama")
WINDOW = 64


def read_base(path):
    """Tokens; and the log-probabilities of positions WINDOW/2 ... WINDOW-2 of each window, with the next token."""
    with open(path, "rb") as f:
        data = f.read()
    assert data[:8] == b"_logits_"
    window, n_vocab, n_windows = struct.unpack_from("<Iii", data, 8)
    tokens = struct.unpack_from(f"<{window * n_windows}i", data, 20)
    at, rows = 20 + 4 * len(tokens), []
    for w in range(n_windows):
        for position in range(window // 2, window - 1):
            scale, least = struct.unpack_from("<ff", data, at)
            codes = struct.unpack_from(f"<{n_vocab}H", data, at + 8)
            rows.append(([scale * c + least for c in codes], tokens[w * window + position + 1]))
            at += 8 + 2 * (n_vocab + n_vocab % 2)
    assert at == len(data)
    return tokens, rows


class Divergence(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="gyre-kl-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.text, self.base = (os.path.join(self.dir, n) for n in ("text", "base"))
        with open(os.path.join(MODEL, "heldout.txt"), encoding="utf-8") as f, open(self.text, "w") as out:
            out.write(f.read()[:1500])

    def write(self, model, path):
        p = gyre("perplexity", model, "-f", self.text, "--window", str(WINDOW), "--kl-divergence-base", path)
        self.assertEqual(p.returncode, 0, p.stderr)

    def compare(self, model):
        p = gyre("perplexity", model, "--kl-divergence-base", self.base, "--kl-divergence")
        self.assertEqual(p.returncode, 0, p.stderr)
        return p.stdout, {k: float(v) for k, v in re.findall(r"^(\S.*?)\s*:\s+(-?[\d.]+)", p.stdout, re.M)}

    def test_a_base_file_holds_the_text_and_what_the_model_says(self):
        self.write(MODEL, self.base)
        tokens, rows = read_base(self.base)
        said = gyre("tokenize", MODEL, "-f", self.text, "--no-special").stdout.split(",")
        self.assertEqual(list(tokens), [int(x) for x in said[:len(tokens)]])
        self.assertEqual(len(tokens), len(said) // WINDOW * WINDOW)
        for log_p, _ in rows[::50]:
            self.assertLess(abs(sum(map(math.exp, log_p)) - 1), 2e-3)

    def test_a_model_is_no_way_from_itself(self):
        self.write(MODEL, self.base)
        _, told = self.compare(MODEL)
        self.assertLess(told["Maximum KLD"], 1e-4)
        self.assertEqual(told["Same top p"], 100)
        self.assertLess(abs(told["Mean PPL(Q)/PPL(base)"] - 1), 1e-4)

    def test_figures_are_those_of_both_base_files(self):
        other, other_base = os.path.join(self.dir, "q.gguf"), os.path.join(self.dir, "other")
        self.assertEqual(gyre("quantize", MODEL, other, "--type", "q4_k_m", "-q").returncode, 0)
        self.write(MODEL, self.base)
        self.write(other, other_base)
        out, told = self.compare(other)
        (_, base), (_, q) = read_base(self.base), read_base(other_base)
        kl = [sum(math.exp(a) * (a - b) for a, b in zip(x, y) if a > -16) for (x, _), (y, _) in zip(base, q)]
        difference = [math.exp(y[t]) - math.exp(x[t]) for (x, t), (y, _) in zip(base, q)]
        mean = lambda v: sum(v) / len(v)
        wanted = {"Mean PPL(Q)": math.exp(mean([-x[t] for x, t in q])),
                  "Mean PPL(base)": math.exp(mean([-x[t] for x, t in base])),
                  "Mean    KLD": mean(kl), "Maximum KLD": max(kl), "Mean    Δp": 100 * mean(difference),
                  "RMS Δp": 100 * math.sqrt(mean([d * d for d in difference])),
                  "Same top p": 100 * mean([x.index(max(x)) == y.index(max(y)) for (x, _), (y, _) in zip(base, q)])
                  }
        for name, value in wanted.items():
            self.assertLess(abs(told[name] - value), 2e-3 * abs(value) + 2e-3, name)
        lines = [l for l in out.splitlines() if re.match(r" +\d+ ", l)]
        self.assertEqual(len(lines), len(base) // (WINDOW // 2 - 1))
        self.assertIn("ln(PPL(Q)/PPL(base))          KL Divergence              Δp RMS", out)

    def writing(self, n_chars):
        """The story model, of 4096 tokens, writes what it says of a text; 8 kB a position of half of it."""
        with open(os.path.join(ROOT, "models/story/heldout.txt"), encoding="utf-8") as f, open(self.text, "w") as out:
            out.write(f.read()[:n_chars])
        words = ["-f", self.text, "--window", str(WINDOW), "--kl-divergence-base", self.base,
                 "--kv-cache-memory", "4000000"]
        return subprocess.Popen([GYRE, "perplexity", os.path.join(ROOT, "models/story"), *words],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    @unittest.skipIf("san" in os.path.dirname(GYRE), "a sanitizer keeps what is freed for a while")
    @slow("the file is of a long text")
    def test_a_large_base_file_is_not_held_in_memory(self):
        peaks = []
        for n_chars in (1000, 20000):
            with self.writing(n_chars) as p:
                _, status, used = os.wait4(p.pid, 0)
                p.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(p.returncode, 0)
            peaks.append(used.ru_maxrss * 1024)
        self.assertGreater(os.path.getsize(self.base), 15e6)
        self.assertLess(peaks[1] - peaks[0], os.path.getsize(self.base) / 2)

    def test_an_interrupt_leaves_nothing(self):
        with self.writing(200000) as p:
            while p.poll() is None and not any(n.startswith("base.") for n in os.listdir(self.dir)):
                time.sleep(0.01)
            p.send_signal(signal.SIGINT)
            self.assertIn("interrupted: nothing was written", p.communicate(timeout=60)[1])
        self.assertEqual(p.returncode, 1)
        self.assertEqual(os.listdir(self.dir), ["text"])

    def test_room_on_the_disk_is_asked_for_first(self):
        for path, sentence in (("/proc/base", "GB, and /proc has 0.00 GB free"),
                               (os.path.join(self.dir, "nowhere", "base"), "cannot be written: No such file")):
            p = gyre("perplexity", MODEL, "-f", self.text, "--window", str(WINDOW), "--kl-divergence-base", path)
            self.assertEqual(p.returncode, 1)
            self.assertIn(sentence, p.stderr)

    def test_faults_are_told(self):
        self.write(MODEL, self.base)
        with open(self.base, "rb") as f:
            good = f.read()
        for data, sentence in ((good[:-1], "ends within its rows"), (b"x" + good[1:], "is no base file"),
                               (good[:12] + struct.pack("<i", 7) + good[16:], "is of a vocabulary of 7 tokens"),
                               (good[:8] + struct.pack("<I", 2) + good[12:], "of 2 tokens; taken are 1 or more, of 4"),
                               (good[:16] + struct.pack("<I", 0) + good[20:], "has 0 windows"),
                               (good[:20] + struct.pack("<i", 99999) + good[24:], "token 0 is 99999"),
                               (good[:11], "is no")):
            with open(self.base, "wb") as f:
                f.write(data)
            p = gyre("perplexity", MODEL, "--kl-divergence-base", self.base, "--kl-divergence")
            self.assertEqual(p.returncode, 1)
            self.assertIn(sentence, p.stderr)

    def test_flags_that_do_not_go_together_are_refused(self):
        given, write = "takes text and windows from the base file", ["-f", self.text, "--kl-divergence-base", self.base]
        compare = ["--kl-divergence-base", self.base, "--kl-divergence"]
        for words, sentence in ((["--kl-divergence"], "--kl-divergence needs --kl-divergence-base FILE"),
                                (compare + ["-f", self.text], given), (compare + ["--window", "64"], given),
                                (compare + ["--stride", "64"], given),
                                (write + ["--stride", "16"], "one behind another, without --stride"),
                                (write + ["--window", "3"], "a --window of 4 tokens or more")):
            p = gyre("perplexity", MODEL, *words)
            self.assertEqual(p.returncode, 2, p.stdout)
            self.assertIn(sentence, p.stderr)
        self.assertEqual(os.listdir(self.dir), ["text"])

    def test_a_base_file_is_written_over_nothing_that_is_read(self):
        folder = os.path.join(self.dir, "folder")
        shutil.copytree(MODEL, folder)
        os.symlink(self.text, self.base)
        for out in (self.text, self.base, os.path.join(folder, "model.safetensors")):
            with open(out, "rb") as f:
                before = f.read()
            p = gyre("perplexity", folder, "-f", self.text, "--window", "64", "--kl-divergence-base", out)
            self.assertEqual(p.returncode, 1)
            self.assertIn(f"{out}: would be written over", p.stderr)
            with open(out, "rb") as f:
                self.assertEqual(f.read(), before)

    def test_the_smallest_window_can_be_compared(self):
        p = gyre("perplexity", MODEL, "-f", self.text, "--window", "4", "--kl-divergence-base", self.base)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertLess(self.compare(MODEL)[1]["Maximum KLD"], 1e-4)


if __name__ == "__main__":
    unittest.main()
