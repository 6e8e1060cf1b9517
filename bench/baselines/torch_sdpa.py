#!/usr/bin/env python3
"""BF16 decode attention by PyTorch's scaled_dot_product_attention (cuDNN backend) on contiguous K and V: the library half of
the BF16-best baseline. Cold L2: launches in a CUDA graph rotate over at least 640 MB of distinct K/V. One line per shape."""
import argparse
import json

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def time_graph(run, launches, replays):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(launches):
            run(i)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(launches):
                run(i)
        for _ in range(3):
            graph.replay()
        times = []
        for _ in range(replays):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / launches)
    times.sort()
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", default="8192,32768,102400")
    parser.add_argument("--batches", default="1,4,16,32")
    parser.add_argument("--groups", default="4,8")
    parser.add_argument("--json")
    args = parser.parse_args()
    heads, d = 8, 128
    out = open(args.json, "a") if args.json else None
    for group in map(int, args.groups.split(",")):
        for n in map(int, args.lengths.split(",")):
            for b in map(int, args.batches.split(",")):
                size = 512 * heads * n * b
                sets = max(2, min(100, 640_000_000 // size + 1))
                k = [torch.randn(b, heads, n, d, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
                v = [torch.randn(b, heads, n, d, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
                q = torch.randn(b, heads * group, 1, d, device="cuda", dtype=torch.bfloat16)
                with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    times = time_graph(
                        lambda i: torch.nn.functional.scaled_dot_product_attention(q, k[i], v[i], enable_gqa=True),
                        sets, 11 if n * b > 1_000_000 else 25)
                median = times[len(times) // 2]
                name = f"attend/cudnn/bf16/d128/g{group}/n{n}/b{b}"
                print(f"{name:44s} {median:9.2f} {times[0]:9.2f} {times[len(times) * 95 // 100]:9.2f}  {size / median * 1e-6:6.3f} TB/s", flush=True)
                if out:
                    out.write(json.dumps({"name": name, "median_us": median, "min_us": times[0], "bytes": size}) + "\n")
                del k, v
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
