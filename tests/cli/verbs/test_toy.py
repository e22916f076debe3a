"""--device toy: a model's text without its weights."""
import json, os, select, shutil, socket, subprocess, tempfile, time, unittest

from brief import slow
import serving

FOLDERS = ["models/story", "tests/models/gemma4", "tests/models/qwen3_5"]  # full attention; windows; recurrent layers


def run(model, *flags, **environment):
    p = subprocess.run([
        serving.GYRE, "run", model, "-p", "Once upon a time", "-n", "40", "--ignore-eos", "--temperature", "0",
        "--device", "toy", "--output", "json", *flags
    ], capture_output=True, text=True, timeout=60, env=dict(os.environ, **environment))
    if p.returncode != 0:
        raise AssertionError(p.stderr)
    return json.loads(p.stdout)


class Toy(unittest.TestCase):
    def test_weights_are_not_read(self):
        for folder in FOLDERS:
            with tempfile.TemporaryDirectory() as bare:
                for name in os.listdir(os.path.join(serving.ROOT, folder)):
                    if name.endswith((".json", ".jinja", ".model", ".txt")) and "index" not in name:
                        shutil.copy(os.path.join(serving.ROOT, folder, name), bare)
                got = run(bare)
                self.assertEqual(len(got["ids"]), 40, folder)
                self.assertEqual(got["text"], run(os.path.join(serving.ROOT, folder))["text"])

    def test_answers_are_the_same_however_the_steps_are_cut(self):
        model = os.path.join(serving.ROOT, "tests/models/gemma4")
        whole = run(model)["text"]
        self.assertEqual(whole, run(model, "--max-num-batched-tokens", "3", "--block-size", "4")["text"])

    def test_a_simulated_step_takes_its_time(self):
        model = os.path.join(serving.ROOT, "models/story")
        begin = time.monotonic()
        text = run(model, GYRE_TOY_STEP_US="5000")["text"]
        self.assertGreater(time.monotonic() - begin, 40 * 0.005)
        self.assertEqual(text, run(model)["text"])

    def test_it_serves(self):
        server = serving.Server("models/story", "--device", "toy")
        try:
            ask = dict(prompt="Once upon a time", max_tokens=40, ignore_eos=True, temperature=0)
            status, whole = server.post("/v1/completions", **ask)
            self.assertEqual((status, whole["usage"]["completion_tokens"]), (200, 40))
            events = server.stream("/v1/completions", **ask)
            self.assertEqual("".join(e["choices"][0]["text"] for e in events[:-1]), whole["choices"][0]["text"])
        finally:
            self.assertEqual(server.stop(), 0)

    @slow("three seconds of a processor")
    def test_streams_whose_clients_left_do_not_hold_the_end_up(self):
        body = b'{"prompt":"Once upon a time","max_tokens":900,"temperature":0,"ignore_eos":true,"stream":true}'
        request = (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                   b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        for _ in range(3):
            server = serving.Server("models/story", "--device", "toy", "--max-num-seqs", "256")
            clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
            for c in clients:
                c.sendall(request)
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                for c in select.select(clients, [], [], 0.1)[0]:
                    if c.recv(1 << 18).endswith(b"0\r\n\r\n"):
                        c.sendall(request)
            for c in clients:
                c.close()
            begin = time.monotonic()
            self.assertEqual(server.stop(), 0)
            self.assertLess(time.monotonic() - begin, 60)  # it had once 75 s of idle timeout to go


if __name__ == "__main__":
    unittest.main()
