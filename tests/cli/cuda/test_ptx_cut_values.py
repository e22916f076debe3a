"""What somebody is told of a checkpoint whose values float16 does not hold, by the CUDA backend and without a GPU:
tests/ptx/machine.h. Its gates are 2^9 times those of a trained one, so that what they let through is beyond 65504."""
import array
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from ptx_machine import MACHINE, ROOT, needs_machine
from serving import GYRE, Server

SENTENCE = r"float16 cut values beyond 65504 .*; --dtype bfloat16 has the range \((\d+) rows\)\n"


def write_loud(folder):
    shutil.copytree(os.path.join(ROOT, "tests/models/llama"), folder, dirs_exist_ok=True)
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as f:
        data = bytearray(f.read())
    size = int.from_bytes(data[:8], "little")
    for name, t in json.loads(data[8 : 8 + size]).items():
        if "gate_proj" in name or "up_proj" in name:
            assert t["dtype"] == "BF16"
            begin, end = (8 + size + at for at in t["data_offsets"])
            values = array.array("H", data[begin:end])
            data[begin:end] = array.array("H", [v + (9 << 7) if v & 0x7FFF else v for v in values]).tobytes()
    with open(path, "wb") as f:
        f.write(data)


@needs_machine
class CutValues(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        write_loud(cls.folder.name)
        os.environ["GYRE_PLUGINS"] = MACHINE

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def told(self, *flags, model=None):
        p = subprocess.run([
            GYRE, "run", model or self.folder.name, "--device", "cuda", "--enforce-eager", "--max-num-seqs", "1",
            "--no-chat", "-p", "Once upon a time", "-n", "1", "--temperature", "0", *flags
        ], capture_output=True, text=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        return p.stderr

    def test_who_runs_it_is_told(self):
        found = re.search(SENTENCE, self.told())
        self.assertTrue(found and int(found[1]) >= 1, found)

    def test_nobody_is_told_of_what_fits(self):
        self.assertNotIn("float16", self.told("--dtype", "bfloat16"))
        self.assertNotIn("float16", self.told(model="tests/models/llama"))

    def test_who_serves_it_is_told_once(self):
        server = Server(self.folder.name, "--device", "cuda", "--enforce-eager", "--max-num-seqs", "1",
                        "--disable-log-requests")
        try:
            for _ in range(2):
                self.assertEqual(
                    server.post("/v1/completions", prompt="Once upon a time", max_tokens=1, temperature=0)[0], 200)
            metrics = server.request("GET", "/metrics")[1]
        finally:
            server.stop()
        n_rows = float(re.search(r"^gyre:cut_rows_total{.*} (\S+)$", metrics, re.M)[1])
        self.assertEqual(re.search(r"^gyre:watched_steps_total{.*} (\S+)$", metrics, re.M)[1], "1")
        told = re.findall(SENTENCE, "".join(server.log))
        self.assertEqual(([float(n) for n in told], n_rows >= 1), ([n_rows], True))


if __name__ == "__main__":
    unittest.main()
