#!/usr/bin/env python3
"""vLLM's own tests of its tool and reasoning parsers, run with gyre in the parsers' place; prints a table.

    python3 -m venv V && V/bin/pip install pytest regex partial-json-parser setuptools wheel
    V/bin/pip download vllm==0.33.0 --no-deps --no-binary :all: --no-build-isolation --no-clean   # leaves its source
    V/bin/python tools/vllm_parsers.py SOURCE [pytest's arguments]

vLLM itself is not installed: what its tests import is made of stand-ins. A parser stands for the template of a model
that vLLM recommends it for; `gyre parse` is asked, whole and, for streams, at each prefix. A test counts if gyre was
asked and it is about texts: tests of token ids, of vLLM's classes and of its grammars say nothing here and are left
out; so is the parser that leaves reasoning in the content. Texts are what a server would give: without the token that
ends an answer, and behind the reasoning where a tool parser is tested. What vLLM itself
fails, and gyre does not, counts too."""
import ast
import importlib.abc
import importlib.machinery
import json
import os
import re
import subprocess
import sys
import types

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GYRE = os.environ.get("GYRE", os.path.join(ROOT, "build/gyre"))
OURS, FOLDER = os.path.join(ROOT, "tests/data/chat/templates"), os.path.join(ROOT, "build/vllm-parsers")

# How models write calls whose templates are not at hand: as such a template would show them.
MADE = {
    "jamba": ("<tool_calls>[\n    ", '{"name": "N", "arguments": A}', ",\n    ", "\n]</tool_calls>"),
    "longcat": ("", '<longcat_tool_call>\n{"name": "N", "arguments": A}\n</longcat_tool_call>', "\n", ""),
    "ernie45": ("", '<tool_call>\n{"name": "N", "arguments": A}\n</tool_call>', "\n", ""),
    "xlam": ("[", '{"name": "N", "arguments": A}', ", ", "]"),
    "granite_20b_fc": ("", '<function_call> {"name": "N", "arguments": A}', "\n", ""),
    "gigachat3": ("", '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "N", "arguments": A}', "\n", ""),
    "gigachat31": ("", '<|function_call|>{"name": "N", "arguments": A}', "\n", ""),
    "phi4_mini_json": ("functools[", '{"name": "N", "arguments": A}', ", ", "]"),
}
TAGGED = {
    "deepseek_v32":
    ("<｜DSML｜function_calls>\n", '<｜DSML｜invoke name="N">\n',
     '<｜DSML｜parameter name="K" string="S">V</｜DSML｜parameter>\n', "</｜DSML｜invoke>\n", "</｜DSML｜function_calls>"),
    "deepseek_v4":
    ("<｜DSML｜tool_calls>\n", '<｜DSML｜invoke name="N">\n', '<｜DSML｜parameter name="K" string="S">V</｜DSML｜parameter>\n',
     "</｜DSML｜invoke>\n", "</｜DSML｜tool_calls>"),
    "glm47": ("", "<tool_call>N", "<arg_key>K</arg_key><arg_value>V</arg_value>", "</tool_call>", ""),
    "minicpm5": ("", '<function name="N">', '<param name="K">V</param>', "</function>", ""),
    "step3":
    ("<｜tool_calls_begin｜>", '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="N">',
     '<steptml:parameter name="K">V</steptml:parameter>', "</steptml:invoke><｜tool_call_end｜>", "<｜tool_calls_end｜>"),
    "hy_v3": ("<tool_calls>\n", "<tool_call>N<tool_sep>\n", "<arg_key>K</arg_key>\n<arg_value>V</arg_value>\n",
              "</tool_call>\n", "</tool_calls>"),
    "dots": ("<dots_function_call>", '<invoke name="N">', '<parameter name="K">V</parameter>', "</invoke>",
             "</dots_function_call>"),
    "k2_horizon": ("<ifm|tool_calls>", "<ifm|tool_call>N",
                   "<ifm|arg_key>K</ifm|arg_key><ifm|arg_value>V</ifm|arg_value>", "</ifm|tool_call>",
                   "</ifm|tool_calls>"),
    "poolside_v1": ("", "<tool_call>N", "\n<arg_key>K</arg_key>\n<arg_value>V</arg_value>", "\n</tool_call>", ""),
}
PYTHON = {"pythonic": ("[", "]", ", "), "olmo3": ("<function_calls>", "</function_calls>", "\n")}

# A parser's name, or a part of its module's, and the template that stands for it: a file of ours, of vLLM's, or made.
TEMPLATES = [
    ("mm_thinker", "mm_thinker"),
    ("ifm_opened", "ifm_opened"),
    ("opened", "opened"),
    ("thinker", "thinker"),
    ("answers", "answers"),
    ("granite32", "granite32"),
    ("hermes", "Qwen-Qwen2.5-7B-Instruct"),
    ("qwen3coder", "Qwen3.5-4B"),
    ("qwen3_coder", "Qwen3.5-4B"),
    ("qwen3", "Qwen3.5-4B"),
    ("deepseekv31", "deepseek-ai-DeepSeek-V3.1"),
    ("deepseek_v31", "deepseek-ai-DeepSeek-V3.1"),
    ("deepseekv32", "deepseek_v32"),
    ("deepseekv4", "deepseek_v4"),
    ("deepseek_v3", "tool_chat_template_deepseekv3"),
    ("deepseekv3", "tool_chat_template_deepseekv3"),
    ("deepseek_r1", "llama-cpp-deepseek-r1"),
    ("glm47", "glm47"),
    ("glm", "GLM-4.6"),
    ("kimi_k2", "Kimi-K2-Instruct"),
    ("minimax_m2", "MiniMax-M2"),
    ("minimax_m3", "minimax_m3"),
    ("seed_oss", "ByteDance-Seed-OSS"),
    ("step3p5", "Qwen3.5-4B"),
    ("step3", "step3"),
    ("granite_20b_fc", "granite_20b_fc"),
    ("granite4", "Qwen-Qwen2.5-7B-Instruct"),
    ("granite", "ibm-granite-granite-3.3-2B-Instruct"),
    ("hunyuan_a13b", "tool_chat_template_hunyuan_a13b"),
    ("hy_v3", "hy_v3"),
    ("internlm", "tool_chat_template_internlm2_tool"),
    ("jamba", "jamba"),
    ("llama3_json", "meta-llama-Llama-3.1-8B-Instruct"),
    ("llama_tool", "meta-llama-Llama-3.1-8B-Instruct"),
    ("llama4_json", "meta-llama-Llama-3.1-8B-Instruct"),
    ("llama4_pythonic", "tool_chat_template_llama4_pythonic"),
    ("longcat", "longcat"),
    ("lfm2", "LFM2-8B-A1B"),
    ("mistral", "mistralai-Mistral-Nemo-Instruct-2407"),
    ("olmo3", "olmo3"),
    ("openai", "openai-gpt-oss-120b"),
    ("phi4", "phi4_mini_json"),
    ("pythonic", "pythonic"),
    ("xlam", "xlam"),
    ("apertus", "Apertus-8B-Instruct"),
    ("gemma4", "google-gemma-4-31B-it"),
    ("functiongemma", "tool_chat_template_functiongemma"),
    ("ernie45", "ernie45"),
    ("gigachat31", "gigachat31"),
    ("gigachat3", "gigachat3"),
    ("minicpm5", "minicpm5"),
    ("dots", "dots"),
    ("poolside_v1", "poolside_v1"),
    ("mimo", "MiMo-VL"),
    ("nemotron", "Qwen3.5-4B"),
    ("olmo", "olmo3"),
    ("kimi_k2", "Kimi-K2-Instruct"),
    ("k2_horizon", "k2_horizon"),
]

# Reasoning parsers that take a text for reasoning from its beginning: of models whose prompts open it.
REASONING = [("granite_thinking", "opened"), ("granite", "granite32"), ("hunyuan", "answers"),
             ("ernie45", "opened"), ("kimi_k2", "opened"), ("minimax_m2", "opened"), ("hy_v3", "thinker"),
             ("glm", "opened"), ("deepseek_r1", "opened"), ("nemotron", "opened"), ("olmo3", "opened"),
             ("holo2", "opened"), ("minimax_m3", "mm_thinker"), ("k2_horizon", "ifm_opened")]

# Parsers whose tests want None where there is no text, and not "".
NONE = ("granite_thinking", "kimi_k2", "nemotron", "minimax_m3", "k2_horizon")

# Tool parsers that take a call for text where the request has no tool of its name.
KNOWS_TOOLS = ("minicpm5", "dots")
END_TOKENS = ("</s>", )
THINKS = ("opened", "thinker", "mm_thinker", "ifm_opened", "answers", "granite32")
THINKING = ("{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ '<think>' + m.reasoning_content + '</think>' if "
            "m.reasoning_content else '' }}{{ (m.content or '') + '<|end|>' }}{% endfor %}<|assistant|>")


def made_template(name):
    if name == "granite32":
        return "{# Here is my thought process: ... Here is my response: #}" + THINKING.replace("<think>", "").replace(
            "</think>", "")
    if name == "answers":  # as Hunyuan writes; the template at hand shows its calls alone
        said = "('<answer>\\n' + m.content + '\\n</answer>' if m.role == 'assistant' else m.content)"
        thought = THINKING.replace("<think>", "<think>\\n").replace("</think>", "\\n</think>\\n")
        return thought.replace("(m.content or '')", said)
    if name in ("mm_thinker", "ifm_opened"):
        mark = "<mm:think>" if name == "mm_thinker" else "<ifm|think>"
        thought = THINKING.replace("<think>", mark).replace("</think>", mark.replace("<", "</"))
        return thought + (mark if name == "ifm_opened" else "")
    if name in ("opened", "thinker"):
        return THINKING + ("<think>" if name == "opened" else "")
    if name in MADE:
        begin, call, separator, end = MADE[name]
        before, after = call.split("N")[0], call.split("N")[1]
        loop = "{{ %r + c.function.name + %r + c.function.arguments | tojson + %r }}" % (before, after.split("A")[0],
                                                                                         after.split("A")[1])
    elif name == "minimax_m3":  # an element an argument, and within objects and lists, whose loops say nothing here
        return THINKING.replace("<think>", "<mm:think>").replace("</think>", "</mm:think>") + (
            "{# ]<]minimax[>[<tool_call> <invoke name= #}")
    elif name in PYTHON:
        begin, end, separator = PYTHON[name]
        loop = ("{{ c.function.name + '(' }}{% for k, v in c.function.arguments.items() %}{{ k + '=' + v | tojson }}"
                "{{ '' if loop.last else ', ' }}{% endfor %}{{ ')' }}")
    else:
        begin, open_call, argument, close, end = TAGGED[name]
        separator = ""
        before, rest = argument.split("K")
        middle, after = rest.split("V")
        middle = middle.replace("S", "' + ('true' if v is string else 'false') + '")
        loop = ("{{ %r + c.function.name + %r }}{%% for k, v in c.function.arguments.items() %%}{{ %r + k + '%s' + "
                "(v if v is string else v | tojson) + %r }}{%% endfor %%}{{ %r }}" %
                (*open_call.split("N"), before, middle, after, close))
    return ("{%% for m in messages %%}{{ '<|' + m.role + '|>' + (m.content or '') }}{%% if m.tool_calls %%}"
            "{{ %r }}{%% for c in m.tool_calls %%}%s{{ '' if loop.last else %r }}{%% endfor %%}{{ %r }}{%% endif %%}"
            "{{ '<|end|>' }}{%% endfor %%}{%% if add_generation_prompt %%}{{ '<|assistant|>' }}{%% endif %%}" %
            (begin, loop, separator, end))


def template_of(parser):
    name = next((t for part, t in TEMPLATES if part in parser.lower().replace("-", "_")), None)
    for path in (os.path.join(OURS, "%s.jinja" % name), os.path.join(SOURCE, "examples/%s.jinja" % name)):
        if name and os.path.exists(path):
            return path
    if name not in (*MADE, *TAGGED, *PYTHON, *THINKS, "minimax_m3"):
        pytest.skip("no template stands for " + parser)
    path = os.path.join(FOLDER, name + ".jinja")
    os.makedirs(FOLDER, exist_ok=True)
    with open(path, "w") as f:
        f.write(made_template(name))
    return path


# ---- gyre -----------------------------------------------------------------------------------------------------------

processes, asked = {}, set()
current = [None]


def parse(parser, output, tools, partial=False, thinks=False):
    path = template_of("gigachat31" if "<|function_call|>" in output else parser)
    for end in END_TOKENS:
        output = output.removesuffix(end)
    if path not in processes:
        processes[path] = subprocess.Popen([GYRE, "parse", path, "--batch"],
                                           stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE,
                                           text=True)
    p = processes[path]
    p.stdin.write(
        json.dumps({
            "output": output,
            "tools": tools,
            "is_partial": partial,
            "enable_thinking": thinks
        }) + "\n")
    p.stdin.flush()
    asked.add(current[0])
    return json.loads(p.stdout.readline())


class Kind(type):
    """Of a class of vLLM's: what a test calls a parser or an adapter of vLLM's is gyre."""

    def __instancecheck__(cls, thing):
        return super().__instancecheck__(thing) or (isinstance(thing, Parser) and "Parser" in cls.__name__)


class Thing(metaclass=Kind):
    """Any of vLLM's records: what it was made with."""

    def __init__(self, *_, **fields):
        if isinstance(fields.get("function"), dict):
            fields["function"] = Thing(**fields["function"])
        self.__dict__.update(fields)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return "function" if name == "type" and type(self).__name__ == "ToolCall" else None

    def __eq__(self, other):
        if isinstance(other, Thing) and self.function and other.function:  # a call: ids are made up
            return self.function == other.function
        return isinstance(other, Thing) and {**self.__dict__, **read(self)} == {**other.__dict__, **read(other)}

    def model_dump(self, **_):
        return plain(self)

    @classmethod
    def model_validate(cls, fields):
        return cls(**fields)


def read(thing):
    """Arguments as what they say: writers of JSON differ in blanks."""
    try:
        return {"arguments": json.loads(thing.arguments)} if thing.arguments else {}
    except ValueError:
        return {}


def plain(value):
    if isinstance(value, Thing):
        return {k: plain(v) for k, v in value.__dict__.items()}
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def tools_of(request, output, given=None, parser=""):
    """The request's; and as most of vLLM's parsers ask for no tool of that name, every word of the text may be one."""
    tools = [t for t in plain(getattr(request, "tools", None) or given or []) if isinstance(t, dict)]
    tools = [t if "function" in t else {"type": "function", "function": t} for t in tools]
    if tools and any(part in parser for part in KNOWS_TOOLS):
        return tools
    known = {t["function"].get("name") for t in tools}
    words = {"a"} | set(re.findall(r"[A-Za-z_][\w-]*", output) + re.findall(r"[A-Za-z_][\w.-]*", output))
    return tools + [{"type": "function", "function": {"name": w}} for w in sorted(words - known)]


class Anything:

    def __eq__(self, other):
        return True


class Text(str):
    """vLLM's parsers differ in whether no text is "" or None, and in the blanks at the ends: these are not compared."""
    __hash__ = str.__hash__

    def __eq__(self, other):
        return self.strip() == (other or "").strip()


def calls_of(answer):
    return [
        Thing(id=c.get("id") or "call_%020d" % i,
              type="function",
              index=i,
              function=Thing(name=c["name"], arguments=c["arguments"])) for i, c in enumerate(answer["tool_calls"])
    ]


class Parser:
    name = None

    def __init__(self, tokenizer=None, tools=None, *_, chat_template_kwargs=None, **__):
        self.effort = (chat_template_kwargs or {}).get("reasoning_effort")
        given = [v for k, v in (chat_template_kwargs or {}).items() if "thinking" in k]
        self.enabled = given[0] not in (False, "disabled") if given else True
        self.model_tokenizer, self.tools, self.seen = tokenizer, tools, ""
        self.forget()

    def forget(self):
        self.told = {"content": "", "calls": [], "reasoning": ""}

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip("vLLM's own: " + name)

    def is_reasoning_end(self, *_, **__):  # of token ids
        return Anything()

    def extract_content_ids(self, *_, **__):
        return Anything()

    def parse(self, output, request, partial=False):
        """What a tool parser is given stands behind the reasoning, which some templates' prompts open."""
        tools = tools_of(request, output, self.tools, self.name)
        answer = parse(self.name, output, tools, partial)
        if answer["reasoning_content"] and output.lstrip().startswith(answer["reasoning_content"].strip()):
            answer = parse(self.name, "</think>" + output, tools, partial)
        return answer

    def extract_tool_calls(self, output=None, request=None, *_, model_output=None, **__):
        output = model_output if output is None else output
        answer = self.parse(output, request)
        calls = calls_of(answer)
        return kind("ExtractedToolCallInformation")(
            tools_called=bool(calls),
            tool_calls=calls,
            content=Text(answer["content"]) if answer["content"].strip() else None)

    def extract_tool_calls_streaming(self, previous="", current="", delta="", *ids, request=None, **more):
        previous, current = more.get("previous_text", previous), more.get("current_text", current)
        if not current:  # some tests give the news alone
            current = self.seen + more.get("delta_text", delta)
        if not self.seen or not current.startswith(self.seen):
            self.forget()
        self.seen = current
        request = request or next((i for i in ids if isinstance(i, Thing)), None)
        return self.news(self.parse(current, request, partial=True))

    def news(self, answer):
        told, calls = self.told, []
        content = answer["content"][len(told["content"]):]
        for i, call in enumerate(answer["tool_calls"]):
            begins = i == len(told["calls"])
            if begins:
                told["calls"].append("")
            more = call["arguments"][len(told["calls"][i]):]
            told["calls"][i] += more
            if begins:
                calls.append(
                    Thing(index=i,
                          id=call.get("id") or "call_%020d" % i,
                          type="function",
                          function=Thing(name=call["name"], arguments=more or None)))
            elif more:
                calls.append(Thing(index=i, function=Thing(arguments=more)))
        told["content"] += content
        return Thing(content=content or None, tool_calls=calls) if content or calls else None

    def extract_reasoning(self, output=None, request=None, *_, model_output=None, partial=False, **__):
        output = model_output if output is None else output
        thinks = next((t for part, t in REASONING if part in self.name), self.name)
        if self.effort and self.effort != "no_think":
            thinks = "opened"
        given = getattr(request, "chat_template_kwargs", None) or {}
        enabled = given.get("enable_thinking", self.enabled)
        if thinks == "opened" and not enabled:
            thinks = "thinker"
        answer = parse(thinks, output, tools_of(None, output), partial, enabled)
        if answer["tool_calls"]:
            # A call ends the reasoning; vLLM's reasoning parsers leave its text to the tool parser, as content.
            end = output.find(answer["reasoning_content"]) + len(answer["reasoning_content"])
            answer["content"] = output[end:].removeprefix("</think>")
        told = tuple(Text(answer[k]) for k in ("reasoning_content", "content"))
        return tuple(t if t.strip() else None for t in told) if any(p in self.name for p in NONE) else told

    def extract_reasoning_streaming(self, previous="", current="", delta="", *_, **more):
        previous, current = (more.get(k, v) or "" for k, v in (("previous_text", previous), ("current_text", current)))
        if not current:  # some tests give the news alone
            previous, current = self.seen, self.seen + more.get("delta_text", delta)
            self.seen = current
        told = self.extract_reasoning(previous, partial=True) if previous else ("", "")
        now = self.extract_reasoning(current, partial=True)
        news = kind("DeltaMessage")(**{
            k: Text((new or "")[len(old or ""):]) or None
            for k, old, new in zip(("reasoning", "content"), told, now)
        })
        return news if news.reasoning or news.content else None


# ---- vLLM's modules -------------------------------------------------------------------------------------------------


def parser_named(name):
    return type("Parser", (Parser, ), {"name": name})


class Ids(dict):
    def __missing__(self, token):
        return self.setdefault(token, len(self))


class Tokenizer:
    """Words and marks; what tests of texts ask a tokenizer for."""
    ids, eos_token_id = Ids(), -1

    def tokenize(self, text, **_):
        return re.findall(r"<[^<>\s]*>|\[/?[A-Z_]+\]|\s*\w+|\s|.", text, re.S)

    def encode(self, text, **_):
        return [self.ids[t] for t in self.tokenize(text)]

    def decode(self, ids, **_):
        names = list(self.ids)
        return "".join(names[i] for i in (ids if isinstance(ids, list) else [ids]))

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens)

    def convert_tokens_to_ids(self, tokens):
        return [self.encode(t)[0] for t in tokens] if isinstance(tokens, list) else self.encode(tokens)[0]

    def get_vocab(self):
        return self.ids

    def add_tokens(self, *_, **__):
        return 0

    @classmethod
    def from_pretrained(cls, *_, **__):
        return cls()


def run_tool_extraction(parser, output, request=None, streaming=False, **_):
    if streaming:
        told = run_tool_extraction_streaming(parser, parser.model_tokenizer and Tokenizer().tokenize(output)
                                             or [output], request)
        return Text(told.other_content) if told.other_content.strip() else None, told.tool_calls
    answer = parser.extract_tool_calls(output, request)
    return answer.content, answer.tool_calls


def run_tool_extraction_streaming(parser, deltas, request=None, **_):
    text, out = "", Thing(other_content="", tool_calls=[])
    for delta in deltas:
        before, text = text, text + delta
        news = parser.extract_tool_calls_streaming(before, text, delta, [], [], [], request)
        out.other_content += (news and news.content) or ""
        for call in (news and news.tool_calls) or []:
            if call.index == len(out.tool_calls):
                out.tool_calls.append(
                    Thing(id=call.id, type="function", function=Thing(name=call.function.name, arguments="")))
            out.tool_calls[call.index].function.arguments += call.function.arguments or ""
    whole = parser.parse(text, request)  # what the end of the text makes certain
    out.other_content, out.tool_calls = Text(whole["content"]), out.tool_calls if out.tool_calls else calls_of(whole)
    return out


def run_reasoning_extraction(reasoning_parser, model_output, request=None, streaming=False):
    if streaming:
        told = run_reasoning_extraction_streaming(reasoning_parser, model_output, request)
        return told.reasoning, told.other_content
    return reasoning_parser.extract_reasoning("".join(model_output), request)


def run_reasoning_extraction_streaming(parser, deltas, request=None):
    """What the deltas say together, and the end of the text."""
    text, reasoning, content = "", "", ""
    for delta in deltas:
        news = parser.extract_reasoning_streaming(text, text + delta, delta)
        text += delta
        reasoning, content = reasoning + (news and news.reasoning or ""), content + (news and news.content or "")
    whole = parser.extract_reasoning(text, request)
    told = [w if (w or "").startswith(t.strip()) else Text(t) for w, t in zip(whole, (reasoning, content))]
    return Thing(reasoning=told[0], other_content=told[1])


def detokenize_incrementally(tokenizer, all_input_ids, **_):
    """(tokens, their text, and offsets that mean nothing here) of the last id."""
    token = tokenizer.decode(all_input_ids[-1:])
    return [token], token, 0, 0


SPECIAL = {
    "get_tool_parser": parser_named,
    "get_reasoning_parser": parser_named,
    "get_tokenizer": lambda *_, **__: Tokenizer(),
    "AutoTokenizer": Tokenizer,
    "get_function_delta": lambda call: call.function,
    "run_tool_extraction": run_tool_extraction,
    "run_tool_extraction_nonstreaming":
    lambda parser, output, request=None, **_: parser.extract_tool_calls(output, request),
    "split_string_into_token_deltas": lambda tokenizer, text: Tokenizer().tokenize(text),
    "run_tool_extraction_streaming": run_tool_extraction_streaming,
    "run_reasoning_extraction": run_reasoning_extraction,
    "run_reasoning_extraction_streaming": run_reasoning_extraction_streaming,
    "detokenize_incrementally": detokenize_incrementally,
    "build_response_output_items": lambda **_: pytest.skip("vLLM's own: build_response_output_items"),
}


def kind(name, made={}):
    return made.setdefault(name, Kind(name, (Thing, ), {}))


def constant(module, name):
    """Of a module of vLLM's, as its text says; a text."""
    path = os.path.join(SOURCE, module.replace(".", "/"))
    for file in (path + ".py", path + "/__init__.py"):
        if os.path.exists(file):
            with open(file) as f:
                for node in ast.parse(f.read()).body:
                    target = getattr(node, "target", None) or getattr(node, "targets", [None])[0]
                    if getattr(target, "id", None) == name and isinstance(getattr(node, "value", None), ast.Constant):
                        return node.value.value
    return kind(name)


class StandIn(types.ModuleType):

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in SPECIAL:
            return SPECIAL[name]
        if name.startswith("_"):  # inside of a parser
            return lambda *_, **__: pytest.skip("vLLM's own: " + name)
        if name.isupper():
            return constant(self.__name__, name)
        if name.endswith("Manager"):
            return type(name, (), {k: staticmethod(SPECIAL[k]) for k in ("get_tool_parser", "get_reasoning_parser")})
        if name.endswith("Parser") and self.__name__.rsplit(".", 1)[-1].endswith("_parser"):
            return parser_named(self.__name__.rsplit(".", 1)[-1].replace("_engine", ""))
        return kind(name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    names = ("vllm", "transformers", "torch", "mistral_common", "openai_harmony", "xgrammar", "openai",
             "huggingface_hub")

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names or name in ("tests.tool_parsers.utils", "tests.reasoning.utils"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        module.__path__ = []


class Table:

    def __init__(self):
        self.rows = {}

    @pytest.fixture(scope="module")
    def default_tokenizer(self):
        return Tokenizer()

    def pytest_runtest_setup(self, item):
        current[0] = item.nodeid

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.nodeid in asked and report.outcome != "skipped":
            name = os.path.basename(report.nodeid.split("::")[0]).replace("test_", "").replace(".py", "")
            row = self.rows.setdefault(name, [0, []])
            if report.outcome == "passed" or "XPASS" in str(report.longrepr):  # what vLLM itself fails is no claim
                row[0] += 1
            else:
                row[1].append(report.nodeid.split("::", 1)[1])

    def print(self):
        good = sum(r[0] for r in self.rows.values())
        bad = sum(len(r[1]) for r in self.rows.values())
        print("\n| vLLM's test | the same | not |\n|---|---|---|")
        for name, (n, failed) in sorted(self.rows.items()):
            print("| %s | %d | %d |" % (name, n, len(failed)))
        print("| all | %d | %d |\n\n%.1f %% of %d tests" % (good, bad, 100 * good / max(good + bad, 1), good + bad))
        for name, (_, failed) in sorted(self.rows.items()):
            for f in failed:
                print("  %s: %s" % (name, f))


if __name__ == "__main__":
    SOURCE = os.path.abspath(sys.argv[1])
    sys.path.insert(0, SOURCE)
    sys.meta_path.insert(0, Finder())
    os.chdir(SOURCE)
    table = Table()
    arguments = sys.argv[2:] or ["tests/tool_parsers", "tests/reasoning"]
    pytest.main([
        "-q", "--no-header", "-p", "no:cacheprovider",
        os.environ.get("TB", "--tb=no"), "--noconftest", "-W", "ignore", "--continue-on-collection-errors", "--rootdir",
        SOURCE, "-c", os.devnull, "--ignore-glob=*append_reasoning*", *arguments
    ],
                plugins=[table])
    table.print()
