"""EleutherAI's lm-evaluation-harness, with tasks of a few lines."""

PACKAGES = ["lm-eval==0.4.13", "tenacity", "tiktoken", "transformers", "tokenizers", "requests", "aiohttp"]

import json
import math
import os

import lm_eval
from lm_eval.tasks import TaskManager

TASKS = {
    "fox_choice": (
        """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: label
doc_to_choice: choices
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
        [
            {"question": "Once upon a time there was a little", "choices": [" girl", " xylophone quantum"], "label": 0},
            {"question": "The cat sat on the", "choices": [" zq zq zq", " mat"], "label": 1},
        ],
    ),
    "fox_generation": (
        """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 16, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
        [
            {"question": "Once upon a time", "answer": "there was"},
            {"question": "Tell me a story about a fox.", "answer": "no"},
        ],
    ),
    "fox_perplexity": (
        """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
should_decontaminate: false
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
        [
            {
                "text": "Once upon a time there was a little girl. She had a dog."
            }
        ],
    ),
}


def _tasks():
    folder = os.path.join(os.environ["HOME"], "tasks")
    os.makedirs(folder, exist_ok=True)
    for name, (text, documents) in TASKS.items():
        data = os.path.join(folder, name + ".jsonl")
        with open(data, "w") as f:
            f.write("".join(json.dumps(d) + "\n" for d in documents))
        with open(os.path.join(folder, name + ".yaml"), "w") as f:
            f.write(
                "task: %s\ndataset_path: json\ndataset_kwargs:\n  data_files: {test: %s}\ntest_split: test\n%s"
                % (name, data, text)
            )
    return TaskManager(include_path=folder, include_defaults=False)


def _evaluate(server, task, chat=False, **args):
    arguments = {
        "base_url": server.v1 + ("/chat/completions" if chat else "/completions"),
        "model": server.model,
        "num_concurrent": 1,
        "max_retries": 1,
        "max_length": server.context,
        "tokenizer": server.folder,
        "tokenizer_backend": "huggingface",
        "tokenized_requests": False,
        **args,
    }
    os.environ["OPENAI_API_KEY"] = "none"
    r = lm_eval.simple_evaluate(
        model="local-chat-completions" if chat else "local-completions",
        model_args=arguments,
        tasks=[task],
        task_manager=_tasks(),
        apply_chat_template=chat,
        bootstrap_iters=0,
    )
    return r["results"][task]


def multiple_choice(server):
    for tokenized in (False, True):
        assert _evaluate(server, "fox_choice", tokenized_requests=tokenized)["acc,none"] == 1.0, tokenized


def perplexity(server):
    by_text, by_ids = (
        _evaluate(server, "fox_perplexity", tokenized_requests=t)["bits_per_byte,none"] for t in (False, True)
    )
    assert 0 < by_text < 4 and math.isclose(by_text, by_ids, rel_tol=1e-3), (by_text, by_ids)


def generation(server):
    assert 0 <= _evaluate(server, "fox_generation")["exact_match,none"] <= 1


def chat(server):
    assert 0 <= _evaluate(server, "fox_generation", chat=True)["exact_match,none"] <= 1
