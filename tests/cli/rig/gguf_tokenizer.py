"""Writes the vocabulary of a tokenizer.json as GGUF metadata, as llama.cpp's converter does; see gguf_zoo.py.

    python gguf_tokenizer.py TOKENIZER.json|UNIGRAM.model OUT.gguf PRE     a vocabulary alone; PRE: the pre-tokenizer

Pieces of SentencePiece's BPE get the rank of their merge as score, which orders them as the scores of a .model file do.
Not a test itself.
"""
import json
import os
import struct
import sys

import gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPECIALS = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")


def texts_and_types(t, n_vocab):
    pieces = {i: v for v, i in t["model"]["vocab"].items()}
    types = {i: BYTE if len(v) == 6 and v.startswith("<0x") else NORMAL for i, v in pieces.items()}
    for a in t["added_tokens"]:
        pieces[a["id"]] = a["content"]
        types[a["id"]] = CONTROL if a["special"] else USER_DEFINED
    n = max(n_vocab or 0, max(pieces) + 1)
    return [pieces.get(i, f"[PAD{i}]") for i in range(n)], [types.get(i, UNUSED) for i in range(n)]


def steps(value):
    """The parts of a normalizer or pre-tokenizer, one after another."""
    if not value:
        return []
    return [s for p in value.get("normalizers", value.get("pretokenizers", [])) for s in steps(p)] or [value]


def around(t):
    """Which special tokens stand before and behind a text."""
    out, body = ([], []), 0
    for p in steps_of_post(t.get("post_processor")):
        for item in p.get("single", []):
            if "Sequence" in item:
                body = 1
            else:
                out[body].append(item["SpecialToken"]["id"])
    return out


def steps_of_post(p):
    if not p:
        return []
    return [s for q in p.get("processors", []) for s in steps_of_post(q)] or [p]


def merges_of(t):
    return [" ".join(m) if isinstance(m, list) else m for m in t["model"]["merges"]]


def write_spm(w, t, texts, types):
    ranks = {}
    for i, m in enumerate(merges_of(t)):
        ranks.setdefault(m.replace(" ", ""), i)
    unk = t["model"].get("unk_token")
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_scores([-float(ranks.get(x, 1e6)) for x in texts])
    w.add_token_types([UNKNOWN if x == unk else k for x, k in zip(texts, types)])
    w.add_add_space_prefix(any(s["type"] == "Prepend" for s in steps(t["normalizer"])))


def fields(message):
    """(number, value) of a protocol-buffers message: ints, floats as 4 bytes, or bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        n = {0: 0, 1: 8, 2: None, 5: 4}[key & 7]
        if n == 0:
            yield key >> 3, varint()
            continue
        n = varint() if n is None else n
        yield key >> 3, message[at:at + n]
        at += n


def write_model_file(w, path):
    """A SentencePiece .model file of a unigram vocabulary."""
    texts, scores, types = [], [], []
    with open(path, "rb") as f:
        for number, value in fields(f.read()):
            piece = dict(fields(value)) if number == 1 else {}
            if number == 1:
                texts.append(piece[1])
                scores.append(struct.unpack("<f", piece.get(2, bytes(4)))[0])
                types.append(piece.get(3, NORMAL))
            if number == 3:
                rules = dict(fields(value))
                w.add_precompiled_charsmap(rules.get(2, b""))
                w.add_add_space_prefix(bool(rules.get(3, 1)))
                w.add_remove_extra_whitespaces(bool(rules.get(4, 1)))
    w.add_tokenizer_model("t5")
    w.add_token_list(texts)
    w.add_token_scores(scores)
    w.add_token_types(types)
    w.add_add_eos_token(False)


def write_wordpiece(w, t, texts, types):
    w.add_tokenizer_model("bert")
    w.add_token_types(types)
    return [x[2:] if x.startswith("##") and k == NORMAL else "\u2581" + x if k == NORMAL else x
            for x, k in zip(texts, types)]


def write_bpe(w, t, types, pre):
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_merges(merges_of(t))
    w.add_token_types(types)


def write_vocabulary(w, t, n_vocab, pre, config):
    texts, types = texts_and_types(t, n_vocab)
    ids = {x: i for i, x in enumerate(texts)}
    kind = t["model"].get("type") or ("BPE" if "merges" in t["model"] else "WordPiece")
    if kind == "WordPiece":
        stored = write_wordpiece(w, t, texts, types)
    else:
        stored = texts
        if t["model"].get("byte_fallback"):
            write_spm(w, t, texts, types)
        else:
            write_bpe(w, t, types, pre)
    w.add_token_list([x.encode() for x in stored])
    before, behind = around(t)
    named = {k: config.get(k + "_token") for k in SPECIALS}
    named = {k: v["content"] if isinstance(v, dict) else v for k, v in named.items()}
    if before:
        named["bos"] = before[0]
    if behind:
        named["sep" if kind == "WordPiece" else "eos"] = behind[0]
    adders = {"bos": w.add_bos_token_id, "eos": w.add_eos_token_id, "unk": w.add_unk_token_id,
              "pad": w.add_pad_token_id, "sep": w.add_sep_token_id}
    for k, add in adders.items():
        if named.get(k) in ids:
            add(ids[named[k]])
    w.add_add_bos_token(bool(before))
    w.add_add_eos_token(bool(behind))


def load(path):
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def write(w, folder, c):
    """The vocabulary and the chat template of a folder of the zoo."""
    write_vocabulary(w, load(os.path.join(folder, "tokenizer.json")), c["vocab_size"], "qwen2",
                     load(os.path.join(folder, "tokenizer_config.json")))
    with open(os.path.join(folder, "chat_template.jinja"), encoding="utf-8") as f:
        w.add_chat_template(f.read())


def main(path, out, pre):
    w = gguf.GGUFWriter(out, "llama")
    if path.endswith(".model"):
        write_model_file(w, path)
    else:
        write_vocabulary(w, load(path), None, pre, load(os.path.join(os.path.dirname(path), "tokenizer_config.json")))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
