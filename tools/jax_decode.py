#!/usr/bin/env python3
"""The yardstick of --device xla: the decode steps of a dense model in plain JAX, on the same device and plugin.

    tools/jax_decode.py CONFIG.json [--batch 1,8,32] [--context 512] [--steps 64] [--int8] [--int8-cache]

Qwen2's, Llama's and Gemma 4's shapes with random weights, bfloat16 or int8 with a scale a row: jitted, layers unrolled,
caches donated, a loop of `steps` tokens on the device, each the most probable one, fed back. A cache of `context`
tokens a sequence, of which all are attended to: what a step reads then is what gyre's step reads at that length. Layers
with a window have a ring of it. Prints tokens a second for each batch, the median of five runs, and weights and caches
by the time of a step. Needs jax and its plugin for the device; not a test.
"""
import argparse, json, statistics, time
from functools import partial

import jax
import jax.numpy as jnp


def layer_of(c, kind):
    """What the layers of a kind are: heads, a window or None, how keys turn."""
    hd = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    rope = (c.get("rope_parameters") or {}).get(kind, {})
    one = dict(h=c["num_attention_heads"], g=c["num_key_value_heads"], hd=hd, window=None, keys_are_values=False,
               theta=rope.get("rope_theta") or c.get("rope_theta", 1e4), turned=rope.get("partial_rotary_factor", 1))
    if kind == "sliding_attention":
        one["window"] = c["sliding_window"]
    elif c.get("global_head_dim"):
        one.update(hd=c["global_head_dim"], g=c.get("num_global_key_value_heads") or one["g"],
                   keys_are_values=c.get("attention_k_eq_v", False))
    return one


def layers_of(c):
    kinds = c.get("layer_types") or ["full_attention"] * c["num_hidden_layers"]
    return [layer_of(c, kind) for kind in kinds]


def is_gemma(c):
    return c["model_type"].startswith("gemma4")


@partial(jax.jit, static_argnums=(1, 2, 3))
def matrix(key, out, inner, is_int8):
    if not is_int8:
        return (jax.random.normal(key, (out, inner), jnp.bfloat16) / inner**0.5).astype(jnp.bfloat16)
    bits = jax.random.bits(key, (out, inner), jnp.uint8)
    return jax.lax.bitcast_convert_type(bits, jnp.int8), jnp.full(out, 1 / (73.9 * inner**0.5), jnp.float32)


def weights(c, layers, is_int8):
    """A list of layers' weights, and those outside."""
    d, f, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    keys = iter(jax.random.split(jax.random.key(0), 4 * len(layers) + 2))

    def drawn(out, inner):
        return matrix(next(keys), out, inner, is_int8)

    def one(s):
        made = dict(qkv=drawn((s["h"] + (1 if s["keys_are_values"] else 2) * s["g"]) * s["hd"], d),
                    o=drawn(d, s["h"] * s["hd"]), up=drawn(2 * f, d), down=drawn(d, f), a=jnp.ones(d), b=jnp.ones(d))
        if is_gemma(c):
            made.update(a2=jnp.ones(d), b2=jnp.ones(d), q=jnp.ones(s["hd"]), k=jnp.ones(s["hd"]), scalar=jnp.ones(1))
        return made

    rest = dict(table=drawn(v, d), n=jnp.ones(d))
    return [one(s) for s in layers], dict(rest, head=None if c.get("tie_word_embeddings") else drawn(v, d))


def norm(x, w=1):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w


def times(x, w):
    w, scale = w if isinstance(w, tuple) else (w, None)
    y = jax.lax.dot_general(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), (((1,), (1,)), ((), ())),
                            preferred_element_type=jnp.float32)
    return y if scale is None else y * scale


def turn(x, position, s):
    half = x.shape[-1] // 2
    at = jnp.arange(half)
    angle = jnp.where(at < s["turned"] * half, position * s["theta"]**(-at / half), 0)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)


def put(cache, new, at):
    """A row [n, g, hd] into a cache [n, g, tokens, hd]; of int8 with its scales."""
    if not isinstance(cache, tuple):
        return jax.lax.dynamic_update_slice(cache, new.astype(jnp.bfloat16)[:, :, None], (0, 0, at, 0))
    scale = jnp.max(jnp.abs(new), -1, keepdims=True) / 127 + 1e-20
    row = jnp.round(new / scale).astype(jnp.int8)
    return (jax.lax.dynamic_update_slice(cache[0], row[:, :, None], (0, 0, at, 0)),
            jax.lax.dynamic_update_slice(cache[1], scale, (0, 0, at)))


def attend(q, k, v, position, scale):
    k, k_scale = k if isinstance(k, tuple) else (k, 1)
    v, v_scale = v if isinstance(v, tuple) else (v, 1)
    k_scale, v_scale = (jnp.expand_dims(x, 2) if jnp.ndim(x) else x for x in (k_scale, v_scale))
    s = jnp.einsum("bghd,bgsd->bghs", q.astype(jnp.bfloat16), k.astype(jnp.bfloat16),
                   preferred_element_type=jnp.float32)
    s = jnp.where(jnp.arange(k.shape[2]) <= position, s * k_scale * scale, -1e30)
    p = (jax.nn.softmax(s, -1) * v_scale).astype(jnp.bfloat16)
    return jnp.einsum("bghs,bgsd->bghd", p, v.astype(jnp.bfloat16), preferred_element_type=jnp.float32)


def attention(s, w, x, position, k, v):
    n, h, g, hd = x.shape[0], s["h"], s["g"], s["hd"]
    qkv = times(x, w["qkv"]).reshape(n, -1, hd)
    q, new_k, new_v = qkv[:, :h], qkv[:, h:h + g], qkv[:, h:h + g] if s["keys_are_values"] else qkv[:, h + g:]
    if "q" in w:
        q, new_k, new_v = norm(q, w["q"]), norm(new_k, w["k"]), norm(new_v)
    tokens = (k[0] if isinstance(k, tuple) else k).shape[2]
    k, v = put(k, turn(new_k, position, s), position % tokens), put(v, new_v, position % tokens)
    y = attend(turn(q, position, s).reshape(n, g, h // g, hd), k, v, position, 1 if "q" in w else hd**-0.5)
    return times(y.reshape(n, h * hd), w["o"]), (k, v)


def layer(c, s, w, x, position, k, v):
    y, cache = attention(s, w, norm(x, w["a"]), position, k, v)
    x += norm(y, w["a2"]) if "a2" in w else y
    gate, up = jnp.split(times(norm(x, w["b"]), w["up"]), 2, -1)
    y = times((jax.nn.gelu(gate) if is_gemma(c) else jax.nn.silu(gate)) * up, w["down"])
    return (x + norm(y, w["b2"])) * w["scalar"] if "b2" in w else x + y, cache


def step(c, layers, made, rest, token, position, caches):
    table, out = rest["table"], []
    x = table[0][token] * table[1][token, None] if isinstance(table, tuple) else table[token].astype(jnp.float32)
    x = x * c["hidden_size"]**0.5 if is_gemma(c) else x
    for s, w, (k, v) in zip(layers, made, caches):
        x, cache = layer(c, s, w, x, position, k, v)
        out.append(cache)
    logits = times(norm(x, rest["n"]), table if rest["head"] is None else rest["head"])
    cap = c.get("final_logit_softcapping")
    return jnp.argmax(cap * jnp.tanh(logits / cap) if cap else logits, -1).astype(jnp.int32), out


def empty(s, batch, context, is_int8):
    shape = (batch, s["g"], min(s["window"] or context, context), s["hd"])
    return tuple((jnp.zeros(shape, jnp.int8), jnp.ones(shape[:3])) if is_int8 else jnp.zeros(shape, jnp.bfloat16)
                 for _ in "kv")


def measure(run, o, batch, token, caches, n_bytes):
    seconds = []
    for i in range(6):
        start = time.perf_counter()
        token, caches = run(token, caches)
        token.block_until_ready()
        seconds.append(time.perf_counter() - start)
        if i == 0:
            print(f"jax: compiled and run in {seconds.pop():.1f} s", flush=True)
    t = statistics.median(seconds) / o.steps
    print(f"jax: batch {batch}: {batch / t:.1f} tokens/s, {t * 1e3:.3f} ms a step, {n_bytes / 1e9:.2f} GB of weights "
          f"and caches, {n_bytes / t / 1e12:.2f} TB/s", flush=True)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("config")
    a.add_argument("--batch", default="1,8,32")
    a.add_argument("--context", type=int, default=512)
    a.add_argument("--steps", type=int, default=64)
    a.add_argument("--int8", action="store_true", help="weights")
    a.add_argument("--int8-cache", action="store_true", help="keys and values, a scale a head and token")
    o = a.parse_args()
    with open(o.config) as f:
        c = json.load(f)
    c = c.get("text_config", c)
    layers = layers_of(c)
    made, rest = weights(c, layers, o.int8)

    @partial(jax.jit, donate_argnums=(3,))
    def run(made, rest, token, caches):
        return jax.lax.fori_loop(
            0, o.steps, lambda i, s: step(c, layers, made, rest, s[0], o.context - o.steps + i, s[1]), (token, caches))

    for batch in map(int, o.batch.split(",")):
        caches = [empty(s, batch, o.context, o.int8_cache) for s in layers]
        read = [made, caches, rest["table"] if rest["head"] is None else rest["head"], rest["n"]]
        n_bytes = sum(x.nbytes for x in jax.tree.leaves(read))
        measure(partial(run, made, rest), o, batch, jnp.zeros(batch, jnp.int32), caches, n_bytes)


if __name__ == "__main__":
    main()
