"""--device xla over a plugin that computes nothing and looks at everything (tests/xla/stand_in.c): structs, order of
calls, what is given away, what is freed; each call of it failing in turn, which is a sentence and no leak; and what a
step that decodes costs: calls, and bytes to the device and from it."""
import json, os, re, signal, socket, subprocess, tempfile, time, unittest

from brief import slow
from packages import ROOT

GYRE = os.path.abspath(os.environ["GYRE"])
FREES = {"Event_Destroy", "Buffer_Destroy", "Executable_Destroy", "LoadedExecutable_Destroy", "Client_Destroy"}
ONLY_DESCRIBE = {"Plugin_Attributes", "Device_GetDescription", "DeviceDescription_Id", "DeviceDescription_Kind",
                 "Executable_Serialize", "Device_MemoryStats"}  # what fails in these is done without


class StandIn(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.plugin = os.path.join(cls.folder.name, "stand_in.so")
        flags = ["-std=c17", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
        source = os.path.join(ROOT, "tests/xla/stand_in.c")
        subprocess.run(["cc", *flags, "-I", os.path.join(ROOT, "src"), "-o", cls.plugin, source], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def gyre(self, *flags, model="llama", **environment):
        """The result, and the lines of the log."""
        log = os.path.join(self.folder.name, "log")
        if os.path.exists(log):
            os.remove(log)
        p = subprocess.run([GYRE, "run", os.path.join(ROOT, "tests/models", model), "--device", "xla", "-p", "a b c",
                            "--no-chat", "-n", "4", "--ignore-eos", "--device-option", "cache=0", *flags],
                           capture_output=True, text=True, timeout=20,
                           env=dict(os.environ, GYRE_XLA_PLUGIN=self.plugin, STAND_IN_LOG=log, **environment))
        if not os.path.exists(log):
            return p, []
        with open(log) as f:
            return p, f.read().splitlines()

    def clean(self, p, log):
        self.assertEqual([l for l in log if l.startswith("VIOLATION")], [], p.stderr)
        self.assertEqual(log[-1:], ["left 0"], p.stderr)

    def counts(self, log):
        return {l.split()[1]: int(l.split()[2]) for l in log if l.startswith("calls ")}

    def decode(self, n, n_output, *flags, model="llama", **environment):
        """What `n` sequences of 100 tokens and so many more cost: counts of the log."""
        log = os.path.join(self.folder.name, "log")
        if os.path.exists(log):
            os.remove(log)
        p = subprocess.run([GYRE, "bench", "decode", os.path.join(ROOT, "tests/models", model), "--device", "xla",
                            "--batch", str(n), "--input-len", "100", "--output-len", str(n_output), "--num-iters", "1",
                            "--warmup-seconds", "0", "--max-model-len", "256", "--device-option", "cache=0", *flags],
                           capture_output=True, text=True, timeout=100,
                           env=dict(os.environ, GYRE_XLA_PLUGIN=self.plugin, STAND_IN_LOG=log, **environment))
        with open(log) as f:
            lines = f.read().splitlines()
        self.assertEqual(p.returncode, 0, p.stderr)
        self.clean(p, lines)
        self.reported = p.stdout
        return {words[-2]: int(words[-1]) for words in map(str.split, lines) if words[0] in ("calls", "bytes")}

    def test_a_step_takes_numbers_once_and_gives_tokens(self):
        """Nothing is filled or copied behind the first, no logits come back."""
        n, more = 32, 64
        short, long = self.decode(n, 17), self.decode(n, 17 + more)
        each = {name: (long[name] - short[name]) / more for name in short}
        for name in ("LoadedExecutable_Execute", "Client_BufferFromHostBuffer", "Buffer_ToHostBuffer"):
            self.assertEqual(each[name], 1, name)
        self.assertEqual(each["Event_Await"], 2)
        self.assertEqual(each["from"], n * 3 * 4)  # token, most probable one, whether all was finite
        self.assertLess(each["to"], n * 4 * 88)

    def test_prompts_that_come_together_begin_together(self):
        n_output = 9  # of which the prompts' step gives one
        n = self.decode(32, n_output, "--device-option", "dense=0")["Buffer_ToHostBuffer"]
        self.assertEqual(n, 1 + 2 + n_output - 1)  # the start's prompt; 2 launches of 16 x 128 tokens; a step a token

    def test_a_long_prompt_goes_in_chunks_where_no_step_is_said(self):
        """600 tokens: 512 of a step of 8192 are for one sequence, unless the flag says so many."""
        long = ("--input-len", "600", "--max-model-len", "1024", "--device-option", "dense=0")
        n = [self.decode(1, 2, *long, *said)["LoadedExecutable_Execute"]
             for said in ((), ("--max-num-batched-tokens", "8192"))]
        self.assertEqual(n[0] - n[1], 1)

    def test_compiling_dense_copies_is_not_preparing(self):
        slow_ms = 400
        self.decode(2, 4, STAND_IN_SLOW=str(slow_ms))
        took = {what: int(us) for us, what in re.findall(r"counted +([0-9]+) us: (.*)", self.reported)}
        self.assertGreater(took["time that compiling took"], 1000 * slow_ms)
        self.assertLess(took["before launches: copies of blocks, dense copies filled and brought back"], 1000 * slow_ms)

    def test_a_launch_makes_eight_tokens_on_a_tpu(self):
        """Blocks end within launches."""
        more, how = 32, ("--input-len", "101", "--block-size", "16", "--device-option", "dense=0")
        for platform, steps in (("cpu", 1), ("cuda", 1), ("tpu", 8)):
            short, long = (self.decode(3, n, *how, STAND_IN_PLATFORM=platform) for n in (17, 17 + more))
            self.assertEqual(long["LoadedExecutable_Execute"] - short["LoadedExecutable_Execute"], more // steps)

    def test_a_first_token_is_read_before_a_gpu_loops(self):
        """There a launch comes back when its loop has ended; elsewhere it is queued behind the prompt."""
        calls = {"LoadedExecutable_Execute": "run", "Buffer_ToHostBuffer": "read"}
        for platform, order in (("cuda", "run read run read"), ("tpu", "run run read read")):
            p, log = self.gyre("-n", "9", "--device-option", "dense=0", "--xla-steps", "8", STAND_IN_PLATFORM=platform,
                               STAND_IN_ORDER="1")
            self.clean(p, log)
            made = [calls[words[1]] for words in map(str.split, log) if words[0] == "order" and words[1] in calls]
            self.assertEqual(" ".join(made[-4:]), order, platform)

    def test_a_loop_is_no_program_more(self):
        """Not of a token by itself, at the end of a block; nor of a row that the host draws, or the steps behind it."""
        how = ("-n", "24", "--block-size", "16", "--device-option", "dense=0")
        for more in ((), ("--repetition-penalty", "1.2")):
            logs = [self.gyre(*how, *more, "--xla-steps", steps, STAND_IN_PLATFORM=platform)[1]
                    for platform, steps in (("cpu", "1"), ("cuda", "8"), ("tpu", "8"))]
            n = [self.counts(log)["Client_Compile"] for log in logs]
            self.assertEqual(n, n[:1] * 3)

    def test_several_steps_a_launch_are_for_those_too_that_others_left(self):
        """Sequences begin one step after the other, and so end; the last eight steps are one launch."""
        n = self.decode(8, 65, "--max-num-batched-tokens", "108", "--block-size", "256", "--xla-steps", "8",
                        "--device-option", "dense=0")["LoadedExecutable_Execute"]
        # zeros, the start; 8 steps with the end of a prompt, the beginning of the next and one launch of all before
        # them; 64 steps in eights
        self.assertLessEqual(n, 2 + 8 * 3 + 8)

    def test_what_a_step_reads_is_as_it_lies(self):
        """Int8 weights and caches, and a ring token by token: as many bytes as a paged cache of its window."""
        read = {}
        for name, flags in (("wide", ()), ("int8", ("--quantization", "int8", "--kv-cache-dtype", "int8")),
                            ("rings", ("--device-option", "rings=0"))):
            path = os.path.join(self.folder.name, name + ".json")
            self.decode(1, 17, "--dtype", "bfloat16", "--output-json", path, *flags, model="gemma4")
            with open(path) as f:
                read[name] = json.load(f)["decode"][0]
        self.assertEqual(read["rings"]["cache_bytes"], read["wide"]["cache_bytes"])
        for name in ("weight_bytes", "cache_bytes"):
            self.assertTrue(0.5 < read["int8"][name] / read["wide"][name] < 0.7, (name, read))

    def test_a_run_gives_all_back(self):
        for flags in ((), ("--temperature", "1", "--repetition-penalty", "1.2"), ("--quantization", "int8"),
                      ("--kv-cache-dtype", "int8"), ("--tensor-parallel-size", "2"), ("--load-format", "dummy"),
                      ("--xla-steps", "3")):
            p, log = self.gyre(*flags)
            self.assertEqual(p.returncode, 0, p.stderr)
            self.clean(p, log)
            self.assertGreater(self.counts(log)["LoadedExecutable_Execute"], 2)
        p, log = self.gyre(model="qwen3_5")
        self.clean(p, log)

    def test_other_hosts_are_waited_for_as_long_as_is_said(self):
        with socket.create_server(("127.0.0.1", 0)) as s:
            nodes = ("--nnodes", "2", "--master-addr", "127.0.0.1:%d" % s.getsockname()[1])
        line = [GYRE, "run", os.path.join(ROOT, "tests/models/llama"), "--device", "xla", "-p", "a b c", "--no-chat",
                "-n", "4", "--ignore-eos", "--device-option", "cache=0", "--device-option", "patience=100", *nodes]
        other = subprocess.Popen([*line, "--node-rank", "1"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                 text=True, env=dict(os.environ, GYRE_XLA_PLUGIN=self.plugin))
        self.addCleanup(lambda: other.stderr.closed or (other.kill(), other.communicate()))
        p, log = self.gyre("--device-option", "patience=100", *nodes)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.clean(p, log)
        self.assertGreater(self.counts(log)["LoadedExecutable_Execute"], 2)
        said = other.communicate(timeout=100)[1]
        self.assertEqual(other.returncode, 0, said)
        p, _ = self.gyre("--device-option", "patience=x")
        self.assertIn("patience: of 1 to 86400 seconds, not \"x\"", p.stderr)

    def test_ranks_on_cards_of_two_sizes_run_one_program(self):
        for small_first in (False, True):  # a 32th of the small one has no room for dense copies
            sizes = ["4000000", "2000"]
            p, log = self.gyre("--tensor-parallel-size", "2",
                               STAND_IN_MEMORY=":".join(sizes[::-1] if small_first else sizes))
            self.assertEqual(p.returncode, 0, p.stderr)
            self.clean(p, log)
            self.assertGreater(self.counts(log)["LoadedExecutable_Execute"], 2)

    def test_a_compiler_that_takes_long_is_told(self):
        p, log = self.gyre("-n", "1", STAND_IN_SLOW="2300")
        self.clean(p, log)
        self.assertRegex(p.stderr, "gyre: xla: compiling a step of 1 x [0-9]+ tokens, with up to [0-9]+ of context: "
                                   "[0-9]+ s so far")
        self.assertNotIn("compiling", self.gyre()[0].stderr)

    @slow("it waits for a compiler")
    def test_a_process_that_was_stopped_does_not_make_up_for_lines(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "said")
            line = [GYRE, "run", os.path.join(ROOT, "tests/models/llama"), "--device", "xla", "-p", "a", "--no-chat",
                    "--device-option", "cache=0"]
            with open(path, "w") as said:
                p = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=said,
                                     env=dict(os.environ, GYRE_XLA_PLUGIN=self.plugin, STAND_IN_SLOW="21000"))

            def lines():
                with open(path) as f:
                    return f.read().count("s so far")

            try:
                while lines() == 0:
                    self.assertIsNone(p.poll())
                    time.sleep(0.1)
                p.send_signal(signal.SIGSTOP)
                time.sleep(16)
                p.send_signal(signal.SIGCONT)
                time.sleep(2)
                self.assertEqual(lines(), 2)
            finally:
                p.kill()
                p.wait()

    @slow("a run for each call")
    def test_each_call_that_fails_is_a_sentence(self):
        for flags in ((), ("--tensor-parallel-size", "2")):
            p, log = self.gyre(*flags)
            for name, n in self.counts(log).items():
                for at in sorted({1, 2, n // 2, n}):
                    if at < 1 or at > n or name in FREES:
                        continue
                    with self.subTest(name=name, at=at, flags=flags):
                        self.fails(name, at, flags)

    def fails(self, name, at, flags):
        p, log = self.gyre(*flags, STAND_IN_FAIL=f"{name}:{at}:13")
        if name in ONLY_DESCRIBE:
            self.assertEqual(p.returncode, 0, p.stderr)
        else:
            self.assertEqual(p.returncode, 1, p.stderr)
            self.assertIn("the stand-in fails here", p.stderr)
            self.assertNotIn("says more", p.stderr)
        self.assertEqual([l for l in log if l.startswith("VIOLATION")], [], p.stderr)
        if log:
            self.assertEqual([l for l in log if l.startswith("left")][-1:], ["left 0"], p.stderr)

    def test_a_device_without_memory_says_so(self):
        p, log = self.gyre(STAND_IN_FAIL="Client_BufferFromHostBuffer:2:8")
        self.assertEqual(p.returncode, 1)
        self.assertRegex(p.stderr, r"llama: model\.\S+weight: device xla: Client_BufferFromHostBuffer")
        self.clean(p, log)

    def test_caches_that_are_copied_are_refused(self):
        p, log = self.gyre(STAND_IN_NO_ALIAS="1")
        self.assertEqual(p.returncode, 1)
        self.assertIn("written in place", p.stderr)
        self.clean(p, log)

    def test_drafts_it_cannot_run_are_refused(self):
        program = os.path.join(ROOT, os.environ.get("BUILD", "build/release"), "tests", "test_draft_models")
        p = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, timeout=60,
                           env=dict(os.environ, GYRE_XLA_PLUGIN=self.plugin, GYRE_TEST_ONLY="xla_refuses*"))
        self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
        self.assertIn("[       OK ] xla_refuses_blocks_and_assistants", p.stdout + p.stderr)

    def test_tables_of_other_versions(self):
        for environment, word in (({"STAND_IN_MINOR": "40"}, "PJRT 0.40"), ({"STAND_IN_SLOTS": "3"}, "lacks call 3"),
                                  ({"STAND_IN_WITHOUT": "55"}, "lacks call 55"),
                                  ({"STAND_IN_WITHOUT": "1"}, "went wrong")):
            p = subprocess.run([GYRE, "run", os.path.join(ROOT, "tests/models/llama"), "--device", "xla", "-p", "a",
                                "-n", "2", "--device-option", "cache=0"], capture_output=True, text=True, timeout=100,
                               env=dict(os.environ, GYRE_XLA_PLUGIN=self.plugin, **environment))
            self.assertEqual(p.returncode, 1)
            self.assertTrue(re.search(word, p.stderr), p.stderr)


if __name__ == "__main__":
    unittest.main()
