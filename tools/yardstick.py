#!/usr/bin/env python3
"""What PyTorch makes of the same decoder: Qwen2.5-7B's shapes with random weights, FP8 products (torch._scaled_mm, a
scale a row on both sides), bf16 head and cache, SDPA over a cache of fixed length, one CUDA graph a step.

    tools/yardstick.py [--batch 1,8,32,128,256,512] [--context 272] [--layers 28] [--compile]

Wants torch 2.9 or later on a Hopper GPU. Prints a line a batch size: milliseconds a step (median of --repeat times 20
replays, least and most), tokens a second. --compile fuses what stands between the products; without it every operation
is a kernel."""
import argparse
import statistics
import time

import torch
import torch.nn.functional as F

HIDDEN, FFN, HEADS, KV_HEADS, HEAD, VOCAB, EPS = 3584, 18944, 28, 4, 128, 152064, 1e-6
E4M3 = torch.float8_e4m3fn
LARGEST = 448.0


def quantised(x):
    """e4m3 and a scale a row."""
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / LARGEST
    return (x.float() / scale).to(E4M3), scale


class Linear:
    def __init__(self, n_out, n_in, bias=False):
        self.w, scale = quantised(torch.randn(n_out, n_in, device="cuda", dtype=torch.bfloat16) / n_in**0.5)
        self.scale = scale.reshape(1, -1)
        self.bias = torch.randn(n_out, device="cuda", dtype=torch.bfloat16) * 0.1 if bias else None

    def __call__(self, x):
        q, scale = quantised(x)
        return torch._scaled_mm(q, self.w.t(), scale_a=scale, scale_b=self.scale, bias=self.bias,
                                out_dtype=torch.bfloat16, use_fast_accum=True)


class Layer:
    def __init__(self):
        self.norm1 = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
        self.norm2 = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
        self.qkv = Linear((HEADS + 2 * KV_HEADS) * HEAD, HIDDEN, bias=True)
        self.o = Linear(HIDDEN, HEADS * HEAD)
        self.gate_up = Linear(2 * FFN, HIDDEN)
        self.down = Linear(HIDDEN, FFN)

    def __call__(self, x, cos, sin, k_cache, v_cache, position):
        n = x.shape[0]
        qkv = self.qkv(F.rms_norm(x, (HIDDEN,), self.norm1, EPS)).view(n, HEADS + 2 * KV_HEADS, HEAD)
        qk, v = qkv[:, : HEADS + KV_HEADS], qkv[:, HEADS + KV_HEADS :]
        a, b = qk.chunk(2, -1)
        qk = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        k_cache.index_copy_(2, position, qk[:, HEADS:].unsqueeze(2))
        v_cache.index_copy_(2, position, v.unsqueeze(2))
        y = F.scaled_dot_product_attention(qk[:, :HEADS].unsqueeze(2), k_cache, v_cache, enable_gqa=True)
        x = x + self.o(y.reshape(n, HEADS * HEAD))
        gate, up = self.gate_up(F.rms_norm(x, (HIDDEN,), self.norm2, EPS)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Decoder:
    def __init__(self, n_layers):
        self.embed = torch.randn(VOCAB, HIDDEN, device="cuda", dtype=torch.bfloat16)
        self.head = torch.randn(VOCAB, HIDDEN, device="cuda", dtype=torch.bfloat16) / HIDDEN**0.5
        self.norm = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
        self.layers = [Layer() for _ in range(n_layers)]

    def step(self, ids, cos, sin, caches, position):
        x = self.embed[ids]
        for layer, (k, v) in zip(self.layers, caches):
            x = layer(x, cos, sin, k, v, position)
        return (F.rms_norm(x, (HIDDEN,), self.norm, EPS) @ self.head.t()).argmax(-1)


def graph_of(decoder, n, context, step):
    ids = torch.randint(VOCAB, (n,), device="cuda")
    angle = (context - 1) / 1e6 ** (torch.arange(0, HEAD, 2, device="cuda") / HEAD)
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
    position = torch.tensor([context - 1], device="cuda")
    caches = [
        tuple(torch.randn(n, KV_HEADS, context, HEAD, device="cuda", dtype=torch.bfloat16)
              for _ in "kv")
        for _ in decoder.layers
    ]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(ids, cos, sin, caches, position)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ids.copy_(step(ids, cos, sin, caches, position))
    return graph, (ids, cos, sin, caches, position)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--batch", default="1,8,32,128,256,512")
    p.add_argument("--context", type=int, default=272)
    p.add_argument("--layers", type=int, default=28)
    p.add_argument("--repeat", type=int, default=7)
    p.add_argument("--compile", action="store_true")
    o = p.parse_args()
    start = time.time()
    torch.manual_seed(0)
    with torch.inference_mode():
        decoder = Decoder(o.layers)
        step = torch.compile(decoder.step) if o.compile else decoder.step
        torch.cuda.synchronize()
        print(
            "torch %s, %s, %d layers, context %d, ready after %.1f s" %
            (torch.__version__, torch.cuda.get_device_name(), o.layers, o.context, time.time() - start), flush=True)
        for n in map(int, o.batch.split(",")):
            graph, kept = graph_of(decoder, n, o.context, step)
            times = []
            for _ in range(o.repeat + 2):
                start = time.time()
                for _ in range(20):
                    graph.replay()
                torch.cuda.synchronize()
                times.append((time.time() - start) / 20 * 1e3)
            times = times[2:]
            ms = statistics.median(times)
            print(
                "N %4d  %8.3f ms a step (%.3f to %.3f)  %10.1f tokens/s" %
                (n, ms, min(times), max(times), n / ms * 1e3), flush=True)
            del graph, kept


if __name__ == "__main__":
    main()
