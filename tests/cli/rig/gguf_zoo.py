"""Writes a model folder of the zoo as a GGUF file, with the Python package gguf: run by an interpreter that has it.

    python gguf_zoo.py FOLDER OUT.gguf [TYPE] [--split N]

What llama.cpp's converter does to weights is done here again, from its description: rows of q and k of Llama's kind are
reordered for interleaved RoPE, Gemma's norms become 1 + w, experts are stacked, Llama 3's RoPE becomes divisors. TYPE
(f32 where missing) is that of matrices whose rows fit its blocks; others stay f32. The names of tensors and keys are
the package's own. Not a test itself.
"""
import json
import math
import os
import struct
import sys

import gguf
import numpy as np

ARCHS = {"llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
         "qwen3_moe": "qwen3moe", "gemma2": "gemma2", "gemma3_text": "gemma3", "gpt_oss": "gpt-oss",
         "gemma4_text": "gemma4", "deepseek_v3": "deepseek2", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}


def tensors_of(folder):
    """name -> float32 array"""
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(n)), f.read()
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        raw = data[t["data_offsets"][0]:t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            a = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            a = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[t["dtype"]]).astype(np.float32)
        out[name] = a.reshape(t["shape"])
    return out


def interleaved(a, n_heads):
    """Row s * half + i of a head becomes row 2 i + s."""
    return a.reshape(n_heads, 2, a.shape[0] // n_heads // 2, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)


def stacked(tensors, c):
    """Experts of their own as stacks, in the names that the package's map knows."""
    out, stacks = {}, {}
    for name, a in tensors.items():
        parts = name.split(".experts.")
        if len(parts) == 2 and parts[1][0].isdigit():
            number, leaf = parts[1].split(".", 1)
            stacks.setdefault(parts[0] + ".experts." + leaf, {})[int(number)] = a
        else:
            out[name] = a
    for name, experts in stacks.items():
        out[name] = np.stack([experts[e] for e in range(len(experts))])
    return out


def gpt_oss(tensors):
    """gate and up are interleaved columns, and matrices lie turned."""
    out = {}
    for name, a in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            base, a = name[:-len("gate_up_proj")], a.swapaxes(1, 2)
            out[base + "gate_proj.weight"], out[base + "up_proj.weight"] = a[:, 0::2], a[:, 1::2]
        elif name.endswith("experts.gate_up_proj_bias"):
            base = name[:-len("gate_up_proj_bias")]
            out[base + "gate_proj.bias"], out[base + "up_proj.bias"] = a[:, 0::2], a[:, 1::2]
        elif name.endswith("experts.down_proj"):
            out[name + ".weight"] = a.swapaxes(1, 2)
        elif name.endswith("experts.down_proj_bias"):
            out[name[:-len("_bias")] + ".bias"] = a
        else:
            out[name + ".weight" if name.endswith("sinks") else name] = a
    return out


def deepseek(tensors, c):
    """kv_b_proj in its halves, that of the keys turned; no layers behind the model's."""
    out, heads, nope = {}, c["num_attention_heads"], c["qk_nope_head_dim"]
    for name, a in tensors.items():
        if name.startswith("model.layers.") and int(name.split(".")[2]) >= c["num_hidden_layers"]:
            continue
        if name.endswith("kv_b_proj.weight"):
            both = a.reshape(heads, -1, a.shape[1])
            out[name.replace("kv_b_proj", "k_b_proj")] = both[:, :nope].swapaxes(1, 2)
            out[name.replace("kv_b_proj", "v_b_proj")] = both[:, nope:]
        else:
            out[name.replace("e_score_correction_bias", "e_score_correction.bias")] = a
    return out


def tiled(a, c, width, axis=0):
    """Value heads of a key one after another become those of all keys in turns."""
    keys = c["linear_num_key_heads"]
    a = np.moveaxis(a, axis, 0)
    out = a.reshape(keys, c["linear_num_value_heads"] // keys, width, *a.shape[1:]).swapaxes(0, 1).reshape(a.shape)
    return np.moveaxis(out, 0, axis)


def qwen35(tensors, c):
    """Value heads in turns, A as it is used, no middle dimension of the convolution; fused experts in their halves."""
    out, width = {}, c["linear_value_head_dim"]
    keys = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"]
    for name, a in tensors.items():
        if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
            a = a.reshape(a.shape[0], -1)
            a = np.concatenate([a[:keys], tiled(a[keys:], c, width)])
        elif name.endswith("in_proj_z.weight"):
            a = tiled(a, c, width)
        elif name.endswith(("in_proj_a.weight", "in_proj_b.weight", "dt_bias")):
            a = tiled(a, c, 1)
        elif name.endswith("A_log"):
            a = -np.exp(tiled(a, c, 1))
        elif name.endswith("linear_attn.out_proj.weight"):
            a = tiled(a, c, width, 1)
        elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            a = a + np.float32(1)
        if name.endswith("experts.gate_up_proj"):
            half = a.shape[1] // 2
            out[name.replace("gate_up_proj", "gate_proj.weight")] = a[:, :half]
            out[name.replace("gate_up_proj", "up_proj.weight")] = a[:, half:]
        elif name.endswith("experts.down_proj"):
            out[name + ".weight"] = a
        else:
            out[name.replace(".dt_bias", ".dt_proj.bias")] = a
    return out


def write_qwen35_keys(w, c):
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_ssm_state_size(c["linear_key_head_dim"])
    w.add_ssm_group_count(c["linear_num_key_heads"])
    w.add_ssm_time_step_rank(c["linear_num_value_heads"])
    w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
    w.add_full_attention_interval(c.get("full_attention_interval", 4))
    w.add_rope_dimension_sections([11, 11, 10, 0])
    w.add_rope_dimension_count(int(c["head_dim"] * c["rope_parameters"]["partial_rotary_factor"]))
    if c.get("shared_expert_intermediate_size"):
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])


def write_deepseek_keys(w, c, rope):
    w.add_leading_dense_block_count(c["first_k_dense_replace"])
    w.add_q_lora_rank(c["q_lora_rank"])
    w.add_kv_lora_rank(c["kv_lora_rank"])
    w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
    w.add_value_length(c["kv_lora_rank"])
    w.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    w.add_value_length_mla(c["v_head_dim"])
    w.add_rope_dimension_count(c["qk_rope_head_dim"])
    w.add_expert_count(c["n_routed_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_weights_norm(c["norm_topk_prob"])
    w.add_expert_group_count(c["n_group"])
    w.add_expert_group_used_count(c["topk_group"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def write_gemma4_keys(w, c, rope):
    slides = [t == "sliding_attention" for t in c["layer_types"]]
    full = c["per_layer_config"][str(slides.index(False))]
    w.add_head_count_kv([c["num_key_value_heads"] if s else full["num_key_value_heads"] for s in slides])
    w.add_sliding_window_pattern(slides)
    w.add_key_length(full["head_dim"])
    w.add_value_length(full["head_dim"])
    w.add_key_length_swa(c["head_dim"])
    w.add_value_length_swa(c["head_dim"])
    w.add_rope_freq_base_swa(float(rope["sliding_attention"]["rope_theta"]))
    turning = int(full["head_dim"] * rope["full_attention"]["partial_rotary_factor"] / 2)
    divisors = [1.0] * turning + [1e30] * (full["head_dim"] // 2 - turning)
    w.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))


def llama3_divisors(c):
    s, dim = c["rope_scaling"], c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    out = []
    for i in range(0, dim, 2):
        wave = 2 * math.pi * c["rope_theta"]**(i / dim)
        low, high = (s["original_max_position_embeddings"] / s[k] for k in ("low_freq_factor", "high_freq_factor"))
        least, most = s["low_freq_factor"], s["high_freq_factor"]
        smooth = (s["original_max_position_embeddings"] / wave - least) / (most - least)
        out.append(1 if wave < high else s["factor"] if wave > low else 1 / ((1 - smooth) / s["factor"] + smooth))
    return np.array(out, np.float32)


def changed(tensors, c, kind):
    """The weights as converters leave them, by their names in the checkpoint."""
    if kind == "gpt_oss":
        tensors = gpt_oss(tensors)
    if kind == "deepseek_v3":
        tensors = deepseek(tensors, c)
    if kind.startswith("qwen3_5"):
        tensors = qwen35(tensors, c)
    tensors = stacked(tensors, c)
    for name in list(tensors):
        if ARCHS[kind] == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = c["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            tensors[name] = interleaved(tensors[name], heads)
        if kind in ("gemma2", "gemma3_text") and name.endswith("norm.weight"):
            tensors[name] = tensors[name] + np.float32(1)
    return tensors


def write_keys(w, c, kind):
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    full = rope.get("full_attention", rope)
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    if c.get("intermediate_size"):
        w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    if kind != "gemma4_text":
        w.add_head_count_kv(1 if kind == "deepseek_v3" else c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    if kind.startswith("qwen3_5"):
        write_qwen35_keys(w, c)
    if kind == "deepseek_v3":
        write_deepseek_keys(w, c, full)
    elif kind == "gemma4_text":
        write_gemma4_keys(w, c, rope)
    elif "head_dim" in c:
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
    if "rope_theta" in c or "rope_theta" in full:
        w.add_rope_freq_base(float(full.get("rope_theta", c.get("rope_theta"))))
    if full.get("rope_type", full.get("type")) == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(full["factor"])
        w.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    if c.get("sliding_window"):
        w.add_sliding_window(c["sliding_window"])
    for key, add in (("attn_logit_softcapping", w.add_attn_logit_softcapping),
                     ("final_logit_softcapping", w.add_final_logit_softcapping)):
        if c.get(key):
            add(c[key])
    if kind == "gemma3_text":
        w.add_rope_freq_base_swa(float(rope["sliding_attention"]["rope_theta"]))
    experts = c.get("num_experts") or c.get("num_local_experts")
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(c["num_experts_per_tok"])
        if kind != "mixtral":
            w.add_expert_feed_forward_length(c.get("moe_intermediate_size", c.get("intermediate_size")))


def write_tokenizer(w, folder, c):
    from gguf_tokenizer import write
    write(w, folder, c)


def name_in_file(names, name):
    name = name + ".weight" if name.endswith("layer_scalar") else name
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if not found:
        raise SystemExit("no name for " + name)
    return found


def main(folder, out, kind="f32", split=0):
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    arch = ARCHS[c["model_type"]]
    model = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(model, c["num_hidden_layers"])
    w = gguf.GGUFWriter(out, arch, split_max_tensors=split)
    write_keys(w, c, c["model_type"])
    if os.path.exists(os.path.join(os.path.dirname(os.path.abspath(__file__)), "gguf_tokenizer.py")):
        write_tokenizer(w, folder, c)
    if (c.get("rope_scaling") or {}).get("rope_type") == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_divisors(c))
    qtype = gguf.GGMLQuantizationType[kind.upper()]
    columns, _ = gguf.GGML_QUANT_SIZES[qtype]
    for name, a in changed(tensors_of(folder), c, c["model_type"]).items():
        stored = name_in_file(names, name)
        is_matrix = a.ndim >= 2 and not stored.endswith(("_inp.weight", ".bias", "conv1d.weight"))
        if kind != "f32" and is_matrix and a.shape[-1] % columns == 0:
            w.add_tensor(stored, gguf.quantize(np.ascontiguousarray(a), qtype), raw_dtype=qtype)
        else:
            w.add_tensor(stored, np.ascontiguousarray(a))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    split = int(sys.argv[sys.argv.index("--split") + 1]) if "--split" in sys.argv else 0
    words = [a for a in sys.argv[1:] if not a.startswith("--")][:3]
    main(*words, split=split)
