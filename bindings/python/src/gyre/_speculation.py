"""speculative_config of LLM: vLLM's dict, as fields of gyre_options."""
from __future__ import annotations

import os
from typing import Any, Dict, Optional, Tuple

from ._errors import RequestError

NUMBERS = {
    "num_speculative_tokens": "n_guesses", "prompt_lookup_min": "ngram_min", "prompt_lookup_max": "ngram_max",
    "disable_by_batch_size": "guess_seqs", "eagle_topk": "draft_topk", "num_draft_tokens": "draft_rows"
}


def speculation_of(config: Optional[Dict[str, Any]]) -> Tuple[Dict[str, Optional[str]], Dict[str, Any]]:
    """Texts and numbers for options_of; none without a config."""
    if config is None:
        return {}, {}
    if not isinstance(config, dict):
        raise RequestError("speculative_config: it must be a dict")
    config = {key: value for key, value in config.items() if value is not None}
    unknown = set(config) - set(NUMBERS) - {
        "method", "model", "adaptive", "synthetic_acceptance_length", "draft_acceptance"
    }
    if unknown:
        raise RequestError("speculative_config: %r is not known" % sorted(unknown)[0])
    method, model = config.get("method"), config.get("model")
    if method is None and model is None:
        raise RequestError("speculative_config: \"method\" is missing")
    if method in ("ngram", "suffix") and model is not None:
        raise RequestError("speculative_config: \"model\" is not for %s, which needs none" % method)
    texts = {"draft_method": None if method == "ngram" else method,
             "draft_model": None if model is None else os.fspath(model)}
    numbers = {field: config[key] for key, field in NUMBERS.items() if key in config}
    numbers.setdefault("n_guesses", 5)
    acceptance = config.get("draft_acceptance", "draw")
    if acceptance not in ("draw", "rejection"):
        raise RequestError("speculative_config: draft_acceptance: %r is neither draw nor rejection" % (acceptance, ))
    numbers["draft_rejection"] = acceptance == "rejection"
    numbers["always_guess"] = not config.get("adaptive", True)
    numbers["synthetic_acceptance"] = float(config.get("synthetic_acceptance_length", 0))
    return texts, numbers
