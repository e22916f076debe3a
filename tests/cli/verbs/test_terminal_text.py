"""What a model's files or a server say does nothing to a terminal; on a pipe every byte stays as it is."""
import json, os, pty, shutil, subprocess, tempfile, unittest

import serving
from fake_server import FakeServer

SMALL = os.path.join(serving.ROOT, "tests/data/tokenizers/llama-2-small")
EVIL = "\x1b]0;pwned\x07\x1b[2J\u009b2J\u202eabc\u2066"
SAFE = "?]0;pwned??[2J?2J?abc?"
STEERING = ["\x1b", "\x07", "\u009b", "\u009d", "\u202e", "\u2066"]


def on_a_terminal(*command):
    """What arrives there: our own styles aside, those are switched off."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="dumb", GYRE_HISTORY="", OPENAI_API_KEY="")
        os.execv(serving.GYRE, [serving.GYRE, *command])
    text = b""
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:
            break
        if not piece:
            break
        text += piece
        if b"/help lists" in text and b"> " in text:
            os.write(fd, b"/exit\n")
    os.close(fd)
    os.waitpid(pid, 0)
    return text.decode().replace("\r\n", "\n")


class Case(unittest.TestCase):
    def clean(self, text, *parts):
        for mark in STEERING:
            self.assertNotIn(mark, text.replace("\x1b[?2004h", "").replace("\x1b[?2004l", ""))
        for part in parts:
            self.assertIn(part, text)


class Models(Case):
    """A folder whose decoder makes EVIL of each token, and whose template holds it."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = os.path.join(cls.folder.name, "model")
        shutil.copytree(SMALL, cls.model)
        cls.change("tokenizer.json",
                   lambda t: t.update(decoder={"type": "Replace", "pattern": {"Regex": "^.*$"}, "content": EVIL}))
        cls.change("tokenizer_config.json", lambda t: t.update(chat_template="{{ messages[0].content }}" + EVIL))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def change(cls, name, how):
        path = os.path.join(cls.model, name)
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
        how(value)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(value, file)

    def test_an_answer(self):
        run = ("run", self.model, "-p", "a", "-n", "3", "--device", "toy", "--no-chat", "--temperature", "0",
               "--ignore-eos")
        self.clean(on_a_terminal(*run), SAFE)
        self.clean(on_a_terminal(*run, "--output", "json"), "2J")
        p = subprocess.run([serving.GYRE, *run], capture_output=True, timeout=60)
        self.assertIn(EVIL.encode(), p.stdout, p.stderr)

    def test_verbs_that_show_texts(self):
        request = os.path.join(self.folder.name, "request.json")
        with open(request, "w") as file:
            json.dump({"messages": [{"role": "user", "content": "x"}]}, file)
        for command in (("detokenize", self.model, "--ids", "300,301"), ("render", self.model, "-f", request)):
            self.clean(on_a_terminal(*command), SAFE)
            self.assertIn(EVIL.encode(),
                          subprocess.run([serving.GYRE, *command], capture_output=True, timeout=60).stdout)

    def test_what_info_and_sentences_quote(self):
        self.clean(on_a_terminal("info", self.model))
        with tempfile.TemporaryDirectory() as bad:
            for fault in ({"model_type": "x" + EVIL}, {"model_type": "llama", "architectures": ["x" + EVIL]}):
                with open(os.path.join(bad, "config.json"), "w") as file:
                    json.dump(fault, file)
                self.clean(on_a_terminal("info", bad), SAFE)


    def test_words_of_the_command_line_and_a_folders_name(self):
        for words in (["x" + EVIL], ["-m", EVIL], ["-x" + EVIL], ["help", "x" + EVIL], ["run", "/no/" + EVIL]):
            self.clean(on_a_terminal(*words), SAFE)
        with tempfile.TemporaryDirectory() as folder:  # whose name is the model's: as an archive had it
            model = os.path.join(folder, "model\nanother line" + EVIL)
            shutil.copytree(os.path.join(serving.ROOT, "models/story"), model)
            p = subprocess.Popen([serving.GYRE, "serve", model, "--device", "toy", "--port", "0"],
                                 stderr=subprocess.PIPE, text=True)
            said = ""
            while "listening" not in said:
                line = p.stderr.readline()
                self.assertTrue(line, said)
                said += line
            p.terminate()
            said += p.communicate(timeout=60)[1]
            self.clean(said, "model?another line" + SAFE + ": ")


class Servers(Case):
    def test_the_name_of_a_model_and_an_error(self):
        with FakeServer(lambda h, b: h.reply(400, {"error": {"message": "bad " + EVIL}}), models=["model" + EVIL]) as s:
            url = "http://127.0.0.1:%d" % s.port
            self.clean(on_a_terminal("chat", "--url", url), "model" + SAFE)
            self.clean(on_a_terminal("chat", "--url", url, "-p", "hello"), "bad ?]0;pwned")
            path = os.path.join(tempfile.gettempdir(), "gyre-terminal-%d.jsonl" % os.getpid())
            with open(path, "w") as file:
                file.write('{"prompt":"hi"}\n')
            self.clean(
                on_a_terminal("bench", "serve", "--base-url", url, "--dataset-name", "custom", "--dataset-path", path,
                              "--num-prompts", "1", "--backend", "openai-chat", "--ready-check-timeout-sec", "0"),
                "model" + SAFE)
            os.unlink(path)


if __name__ == "__main__":
    unittest.main()
