"""gyre render: the prompt that a chat template makes, one or a line each."""
import json, os, subprocess, tempfile, unittest

GYRE = os.path.abspath(os.environ["GYRE"])
CHATML = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")
HELLO = {"messages": [{"role": "user", "content": "Grüße \0 🙂"}]}


class Render(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "wb") as f:
            f.write(text if isinstance(text, bytes) else text.encode())
        return path

    def gyre(self, *words, lines=None, text=None):
        given = "".join(json.dumps(line) + "\n" for line in lines) if lines is not None else text
        return subprocess.run([GYRE, "render", *words], input=(given or "").encode(), capture_output=True, timeout=60)

    def test_prints_the_prompt_and_nothing_else(self):
        p = self.gyre(self.file("t.jinja", CHATML), "-f", self.file("r.json", json.dumps(HELLO)))
        self.assertEqual((p.returncode, p.stderr), (0, b""))
        self.assertEqual(p.stdout.decode(), "<|im_start|>user\nGrüße \0 🙂<|im_end|>\n<|im_start|>assistant\n")

    def test_add_generation_prompt_can_be_false(self):
        p = self.gyre(self.file("t.jinja", CHATML), "-f",
                      self.file("r.json", json.dumps({**HELLO, "add_generation_prompt": False})))
        self.assertEqual(p.stdout.decode(), "<|im_start|>user\nGrüße \0 🙂<|im_end|>\n")

    def test_a_request_may_come_from_standard_input(self):
        p = self.gyre(self.file("t.jinja", "{{ a }}"), "-f", "-", text='{"a": [1, 2.0]}')
        self.assertEqual((p.returncode, p.stdout), (0, b"[1, 2.0]"))

    def test_a_model_folder_brings_its_special_tokens(self):
        self.file("chat_template.jinja", "{{ bos_token }}{{ eos_token }}")
        self.file("tokenizer_config.json", '{"bos_token": "<s>", "eos_token": {"content": "</s>"}}')
        p = self.gyre(self.folder.name, "--batch", lines=[{}, {"bos_token": "B"}])
        self.assertEqual(p.stdout, b'"<s></s>"\n"B</s>"\n')

    def test_numbers_are_shown_as_they_were_written(self):
        line, path = '{"x":[18446744073709551615,1,1.0,1e400]}\n', self.file("t.jinja", "{{ x | tojson }}")
        shown = b"[18446744073709551615, 1, 1.0, Infinity]"
        self.assertEqual(self.gyre(path, "-f", "-", text=line).stdout, shown)
        self.assertEqual(self.gyre(path, "--batch", text=line * 2).stdout.splitlines(), [b'"' + shown + b'"'] * 2)

    def test_now_is_what_strftime_now_tells(self):
        p = self.gyre(self.file("t.jinja", "{{ strftime_now('%d %b %Y %H:%M:%S %A') }}"), "--batch", "--now",
                      "2026-03-14 09:26:53", lines=[{}])
        self.assertEqual(p.stdout, b'"14 Mar 2026 09:26:53 Saturday"\n')

    def test_a_bad_time_is_a_fault(self):
        p = self.gyre(self.file("t.jinja", ""), "--batch", "--now", "yesterday", lines=[])
        self.assertEqual((p.returncode, p.stdout), (1, b""))
        self.assertEqual(p.stderr, b"gyre: --now: 'yesterday' is not a time of the form YYYY-MM-DD HH:MM:SS\n")

    def test_raise_exception_is_exit_1_with_its_message(self):
        path = self.file("t.jinja", "text\n{{ raise_exception('no\nway') }}")
        p = self.gyre(path, "-f", self.file("r.json", "{}"))
        self.assertEqual((p.returncode, p.stdout), (1, b""))
        self.assertEqual(p.stderr.decode(), f"gyre: {path}:2: no\nway\n")

    def test_a_faulty_line_gives_an_error_and_the_rest_go_on(self):
        path = self.file("t.jinja", "{% if boom %}{{ raise_exception('bo\nom') }}{% endif %}{{ a.b }}")
        text = '{"a": {"b": 1}}\n{"boom": true}\n{}\nnot json\n[1]\n\n{"a": {"b": "é"}}\n'
        p = self.gyre(path, "--batch", text=text)
        self.assertEqual((p.returncode, p.stderr), (0, b""))
        out = [json.loads(line) for line in p.stdout.decode().splitlines()]
        self.assertEqual([out[0], out[5]], ["1", "é"])
        self.assertIn("bo\nom", out[1]["error"])
        self.assertIn("'a' is undefined", out[2]["error"])
        self.assertIn("line 4: not valid JSON", out[3]["error"])
        self.assertIn("must be a JSON object", out[4]["error"])
        self.assertEqual(len(out), 6)

    def test_a_large_integer_changes_no_other_number(self):
        path = self.file("t.jinja", "{{ a | tojson }} {{ a.y / 2 }}")
        p = self.gyre(path, "-f",
                      self.file("r.json", '{"a": {"x": 1, "y": 4, "z": [-1, 1.0]}, "other": 18446744073709551615}'))
        self.assertEqual((p.returncode, p.stdout), (0, b'{"x": 1, "y": 4, "z": [-1, 1.0]} 2.0'))

    def test_one_request_or_many_must_be_asked_for(self):
        path = self.file("t.jinja", "")
        for words in ((), ("--batch", "-f", path)):
            p = self.gyre(path, *words)
            self.assertEqual((p.returncode, p.stdout), (2, b""))
            self.assertIn(b"render takes one request with -f, or many with --batch", p.stderr)

    def test_every_file_that_cannot_be_used_is_exit_1_with_its_name(self):
        good, request = self.file("t.jinja", "{{ a }}"), self.file("r.json", "{}")
        for template, file, sentence in [
            (os.path.join(self.folder.name, "absent"), request, "absent"),
            (self.file("bad.jinja", "{% if %}"), request, "bad.jinja:1: Expected an expression"),
            (self.file("binary.jinja", b"\xff\xfe\x00"), request, "binary.jinja:1: the template is not valid UTF-8"),
            (self.file("deep.jinja", "{{ " + "(" * 100000), request, "deep.jinja:1: the template nests more than"),
            (good, os.path.join(self.folder.name, "gone.json"), "gone.json"),
            (good, self.file("cut.json", '{"messages": ['), "cut.json: not valid JSON"),
            (good, self.file("list.json", "[]"), "must be a JSON object"),
            (good, self.file("deep.json", "[" * 100000), "deep.json: not valid JSON"),
            (good, self.file("twice.json", '{"a": 1, "a": 2}'), "twice.json: not valid JSON"),
            (self.folder.name, request, "no chat template here"),
        ]:
            with self.subTest(template=template, file=file):
                p = self.gyre(template, "-f", file)
                self.assertEqual((p.returncode, p.stdout), (1, b""))
                self.assertTrue(p.stderr.startswith(b"gyre: ") and p.stderr.count(b"\n") == 1, p.stderr)
                self.assertIn(sentence, p.stderr.decode())


if __name__ == "__main__":
    unittest.main()
