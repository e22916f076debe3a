"""gyre over a PJRT plugin for the CPU: what it says is what the CPU says, with seeds, on several devices, from kept
programs, in pieces of context, with int8 weights and caches. Every family: test_xla_goldens.py; seeds with
one of three models; six of the tests, drawn anew each time (parts.py).

Not in make test-fast: XLA compiles some dozens of programs."""
import json, os, pathlib, re, shutil, stat, subprocess, tempfile, unittest

from packages import ROOT
from parts import some, some_tests
from xla_plugin import OLDER, environment

GYRE = os.path.abspath(os.environ["GYRE"])
PROMPT = "Once upon a time there was a"


@some_tests(6)
class Run(unittest.TestCase):
    def gyre(self, verb, model, *flags, env=None):
        p = subprocess.run([GYRE, verb, os.path.join(ROOT, "tests/models", model), *flags], capture_output=True,
                           text=True, timeout=500, env=env)
        self.assertEqual(p.returncode, 0, p.stderr)
        return p.stdout

    def ids(self, model, *flags, env=None):
        said = self.gyre("run", model, "--prompt", PROMPT, "--no-chat", "-n", "24", "--output", "json", *flags, env=env)
        return json.loads(said)["ids"]

    def perplexity(self, model, *flags, env=None):
        text = os.path.join(ROOT, "tests/models", model, "heldout.txt")
        said = self.gyre("perplexity", model, "-f", text, "--window", "128", "--stride", "128", *flags, env=env)
        return float(re.search(r"perplexity ([0-9.]+) over", said)[1])

    def test_seeds_draw_what_the_cpu_draws(self):
        env = environment(self)
        for model in some(("qwen2", "gemma3", "qwen3_5")):
            for seed in ("3", "4"):
                how = ("--temperature", "1.1", "--top-p", "0.9", "--top-k", "50", "--min-p", "0.01", "--seed", seed)
                self.assertEqual(self.ids(model, "--device", "xla", *how, env=env), self.ids(model, *how), model)

    def test_rows_that_are_changed_first_are_drawn_from_their_logits(self):
        how = ("--temperature", "1.1", "--repetition-penalty", "1.3", "--seed", "5")
        for steps in ("1", "4"):
            got = self.ids("qwen3", "--device", "xla", "--xla-steps", steps, *how, env=environment(self))
            self.assertEqual(got, self.ids("qwen3", *how))

    def test_the_older_plugin_says_the_same(self):
        env, how = environment(self, OLDER), ("--temperature", "1", "--seed", "1")
        self.assertEqual(self.ids("llama", "--device", "xla", *how, env=env), self.ids("llama", *how))

    def test_two_and_four_devices_say_what_one_says(self):
        env = environment(self)
        for model, n, flags in (("llama", 2, []), ("qwen3", 4, []), ("qwen3_moe", 2, ["--enable-expert-parallel"])):
            how = ("--device", "xla", "--tensor-parallel-size", str(n), "--temperature", "0", *flags)
            self.assertEqual(self.ids(model, *how, env=env), self.ids(model, "--temperature", "0"))

    def test_programs_are_kept_for_the_next_start(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = os.path.join(folder, "kept")
            how = ("--device", "xla", "--temperature", "0", "--device-option", "cache=" + kept)
            env = environment(self)
            first = self.ids("llama", *how, env=env)
            files = {name: os.stat(os.path.join(kept, name)).st_mtime_ns for name in os.listdir(kept)}
            self.assertGreaterEqual(len(files), 3)  # zeros, a prompt, a token
            self.assertEqual(os.stat(kept).st_mode & 0o777, 0o700)
            self.assertEqual(self.ids("llama", *how, env=env), first)
            self.assertEqual(set(os.listdir(kept)), set(files))
            for name in files:  # what is damaged is compiled anew
                with open(os.path.join(kept, name), "r+b") as f:
                    f.seek(100)
                    f.write(b"damaged")
            self.assertEqual(self.ids("llama", *how, env=env), first)
            whole = {name: os.stat(os.path.join(kept, name)) for name in files}
            for i, name in enumerate(files):  # nor is what others can write, or a link, though it is whole
                path = os.path.join(kept, name)
                if i % 2:
                    os.chmod(path, 0o666)
                else:
                    os.rename(path, os.path.join(folder, name))
                    os.symlink(os.path.join(folder, name), path)
            self.assertEqual(self.ids("llama", *how, env=env), first)
            self.assertEqual(set(os.listdir(kept)), set(files))
            for name in files:
                now = os.lstat(os.path.join(kept, name))
                self.assertEqual(now.st_mode, stat.S_IFREG | 0o600)
                self.assertNotEqual(now.st_ino, whole[name].st_ino)
            for name in files:
                os.remove(os.path.join(kept, name))
            os.chmod(kept, 0o777)  # others may put code there
            self.assertEqual(self.ids("llama", *how, env=env), first)
            self.assertEqual(os.listdir(kept), [])

    def test_several_steps_a_launch_change_no_token(self):
        env = environment(self)
        how = ("--block-size", "16", "--ignore-eos", "-n", "70", "--seed", "2")
        for model, temperature in (("llama", "0"), ("gemma3", "1.2")):
            usual = self.ids(model, "--temperature", temperature, *how)
            self.assertEqual(self.ids(model, "--device", "xla", "--xla-steps", "8", "--temperature", temperature, *how,
                                      env=env), usual)
        said = subprocess.run([GYRE, "bench", "decode", os.path.join(ROOT, "tests/models/llama"), "--device", "xla",
                               "--xla-steps", "8", "--batch", "3", "--input-len", "16", "--output-len", "64",
                               "--num-iters", "1", "--warmup-seconds", "0"],
                              capture_output=True, text=True, timeout=300, env=env)
        self.assertEqual(said.returncode, 0, said.stderr)
        foreseen = int(re.search(r"counted +(\d+) steps: steps that a launch", said.stdout)[1])
        launches = int(re.search(r"counted +(\d+) launches", said.stdout)[1])
        self.assertGreater(foreseen, 3 * launches)

    def test_launches_of_several_steps_go_on_into_the_next_block(self):
        env = environment(self)
        how = ("--block-size", "16", "--ignore-eos", "-n", "70", "--seed", "2", "--temperature", "0.8")
        for dense in ("0", "64"):
            for model in ("llama", "gemma3"):
                got = self.ids(model, "--device", "xla", "--xla-steps", "4", "--device-option", "dense=" + dense, *how,
                               env=env)
                self.assertEqual(got, self.ids(model, *how))

    def test_steps_start_before_the_one_before_is_read(self):
        said = subprocess.run([GYRE, "bench", "decode", os.path.join(ROOT, "tests/models/llama"), "--device", "xla",
                               "--batch", "3", "--input-len", "16", "--output-len", "64", "--num-iters", "1",
                               "--warmup-seconds", "0"],
                              capture_output=True, text=True, timeout=300, env=environment(self))
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertGreater(int(re.search(r"counted +(\d+) steps: steps that were started", said.stdout)[1]), 55)

    def test_long_contexts_go_in_pieces(self):
        env, usual = environment(self), self.perplexity("gemma3")
        pieces = self.perplexity("gemma3", "--device", "xla", "--device-option", "blockwise=0", "--block-size", "16",
                                 env=env)
        self.assertAlmostEqual(pieces / usual, 1, delta=1e-4)

    def test_a_sequence_grows_from_one_path_to_the_other(self):
        """Its context is attended to at once up to 256 tokens, and in pieces beyond, unless it has a copy that lies in
        one run; sliding layers by windows."""
        how = ("--temperature", "0", "--ignore-eos", "-n", "60", "--block-size", "16", "--prompt", PROMPT * 25)
        for more in ((), ("--device-option", "dense=0")):
            got = self.ids("gemma4", "--device", "xla", "--device-option", "blockwise=256", *more, *how,
                           env=environment(self))
            self.assertEqual(got, self.ids("gemma4", *how))
        n = int(self.gyre("tokenize", "gemma4", "-p", PROMPT * 25, "--output", "count"))
        self.assertTrue(200 < n < 256 < n + 60, n)

    def test_int8_weights_and_caches_are_near(self):
        env, usual = environment(self), self.perplexity("qwen3")
        for flags in (("--quantization", "int8"), ("--kv-cache-dtype", "int8")):
            near = self.perplexity("qwen3", "--device", "xla", *flags, env=env)
            self.assertAlmostEqual(near / usual, 1, delta=0.015)
            self.assertNotEqual(near, usual)

    def test_products_of_one_row_as_sums(self):
        """As a GPU makes them; of a row of more than 8192 products in parts."""
        env = environment(self)
        for model in some(("qwen3", "gemma4", "qwen3_5", "deepseek_v3")):
            got = self.ids(model, "--device", "xla", "--device-option", "sums=1", "--temperature", "0", env=env)
            self.assertEqual(got, self.ids(model, "--temperature", "0"), model)
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(os.path.join(ROOT, "tests/models/llama")):
                if "safetensors" not in name:
                    shutil.copy(os.path.join(ROOT, "tests/models/llama", name), folder)
            with open(os.path.join(folder, "config.json")) as f:
                config = dict(json.load(f), intermediate_size=16416, torch_dtype="float32")
            with open(os.path.join(folder, "config.json"), "w") as f:
                json.dump(config, f)
            modules = os.path.join(folder, "modules")
            os.mkdir(modules)
            for how in ((), ("--quantization", "int8")):
                got = [self.ids(folder, "--device", "xla", "--load-format", "dummy", "--temperature", "0",
                                "--ignore-eos", "--device-option", "sums=" + sums, "--device-option",
                                "dump=" + modules, *how, env=env)
                       for sums in "01"]
                self.assertEqual(got[0], got[1], how)
            texts = [pathlib.Path(modules, name).read_text() for name in os.listdir(modules)]
            self.assertTrue(any("tensor<128x3x5472x" in text for text in texts))

    def test_what_it_cannot_do_is_refused(self):
        for flags, word in ((("--dtype", "float16"), "float16"), (("--quantization", "fp8"), "int8"),
                            (("--kv-cache-dtype", "fp8"), "fp8"), (("--kv-cache-dtype", "int4"), "not in int4"),
                            (("--device-index", "9"), "devices 0 to 3"),
                            (("--tensor-parallel-size", "3"), "3 devices"),
                            (("--device-option", "blockwise=x"), "blockwise")):
            p = subprocess.run([GYRE, "run", os.path.join(ROOT, "tests/models/llama"), "--device", "xla", "-p", "a",
                                *flags], capture_output=True, text=True, timeout=100, env=environment(self))
            self.assertEqual((p.returncode, p.stderr.count("\n")), (1, 1), p.stderr)
            self.assertIn(word, p.stderr)


if __name__ == "__main__":
    unittest.main()
