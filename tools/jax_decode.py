#!/usr/bin/env python3
"""The yardstick of --device xla: the decode steps of a dense model in plain JAX, on the same device and plugin.

    tools/jax_decode.py CONFIG.json [--batch 1,8,32] [--context 512] [--steps 64]

Qwen2's and Llama's shapes with random bfloat16 weights: jitted, layers unrolled, caches donated, a loop of `steps`
tokens on the device, each the most probable one, fed back. A cache of `context` tokens a sequence, of which all are
attended to: what a step reads then is what gyre's step reads at that length. Prints tokens a second for each batch, the
median of five runs. Needs jax and its plugin for the device; not a test.
"""
import argparse, json, statistics, time
from functools import partial

import jax
import jax.numpy as jnp


def weights(c, key):
    """A list of layers' weights, and those outside."""
    d, hd = c["hidden_size"], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    h, g, f, v = c["num_attention_heads"], c["num_key_value_heads"], c["intermediate_size"], c["vocab_size"]

    def matrix(out, inner):
        nonlocal key
        key, k = jax.random.split(key)
        return (jax.random.normal(k, (out, inner), jnp.float32) / inner**0.5).astype(jnp.bfloat16)

    layers = [dict(qkv=matrix((h + 2 * g) * hd, d), o=matrix(d, h * hd), up=matrix(2 * f, d), down=matrix(d, f),
                   a=jnp.ones(d), b=jnp.ones(d)) for _ in range(c["num_hidden_layers"])]
    return layers, dict(table=matrix(v, d), head=matrix(v, d), n=jnp.ones(d))


def norm(x, w):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w


def times(x, w):
    return jax.lax.dot_general(x.astype(jnp.bfloat16), w, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def turn(x, position, theta):
    half = x.shape[-1] // 2
    angle = position * theta**(-jnp.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)


def attend(c, q, k, v, position):
    s = jnp.einsum("bghd,bgsd->bghs", q.astype(jnp.bfloat16), k, preferred_element_type=jnp.float32)
    s = jnp.where(jnp.arange(k.shape[2]) <= position, s * q.shape[-1]**-0.5, -1e30)
    p = jax.nn.softmax(s, -1).astype(jnp.bfloat16)
    return jnp.einsum("bghs,bgsd->bghd", p, v, preferred_element_type=jnp.float32)


def step(c, layers, rest, token, position, caches):
    hd = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    h, g, n, theta = c["num_attention_heads"], c["num_key_value_heads"], token.shape[0], c.get("rope_theta", 1e4)
    x, out = rest["table"][token].astype(jnp.float32), []
    for w, (k, v) in zip(layers, caches):
        qkv = times(norm(x, w["a"]), w["qkv"]).reshape(n, h + 2 * g, hd)
        q, new = turn(qkv[:, :h], position, theta).reshape(n, g, h // g, hd), turn(qkv[:, h:h + g], position, theta)
        k = jax.lax.dynamic_update_slice(k, new.astype(jnp.bfloat16)[:, :, None], (0, 0, position, 0))
        v = jax.lax.dynamic_update_slice(v, qkv[:, h + g:].astype(jnp.bfloat16)[:, :, None], (0, 0, position, 0))
        x += times(attend(c, q, k, v, position).reshape(n, h * hd), w["o"])
        gate, up = jnp.split(times(norm(x, w["b"]), w["up"]), 2, -1)
        x += times(jax.nn.silu(gate) * up, w["down"])
        out.append((k, v))
    return jnp.argmax(times(norm(x, rest["n"]), rest["head"]), -1).astype(jnp.int32), out


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("config")
    a.add_argument("--batch", default="1,8,32")
    a.add_argument("--context", type=int, default=512)
    a.add_argument("--steps", type=int, default=64)
    o = a.parse_args()
    with open(o.config) as f:
        c = json.load(f)
    hd = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    layers, rest = weights(c, jax.random.key(0))

    @partial(jax.jit, donate_argnums=(3,))
    def run(layers, rest, token, caches):
        return jax.lax.fori_loop(0, o.steps, lambda i, s: step(c, layers, rest, s[0], o.context - o.steps + i, s[1]),
                                 (token, caches))

    for batch in map(int, o.batch.split(",")):
        shape = (batch, c["num_key_value_heads"], o.context, hd)
        caches = [(jnp.zeros(shape, jnp.bfloat16), jnp.zeros(shape, jnp.bfloat16)) for _ in layers]
        token, seconds = jnp.zeros(batch, jnp.int32), []
        for i in range(6):
            start = time.perf_counter()
            token, caches = run(layers, rest, token, caches)
            token.block_until_ready()
            seconds.append(time.perf_counter() - start)
            if i == 0:
                print(f"jax: compiled and run in {seconds.pop():.1f} s", flush=True)
        t = statistics.median(seconds) / o.steps
        print(f"jax: batch {batch}: {batch / t:.1f} tokens/s, {t * 1e3:.3f} ms a step", flush=True)


if __name__ == "__main__":
    main()
