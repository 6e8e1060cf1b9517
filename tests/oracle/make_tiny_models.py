#!/usr/bin/env python3
"""Writes tests/data/tiny_models/*.gguf: random decoders with the RoPE variants and architectures for which no small trained
model exists. Needs numpy and the PyPI package gguf. Then run record_llamacpp.sh, which adds llama.cpp's logits.

Usage: tests/oracle/make_tiny_models.py
"""
import pathlib

import gguf
import numpy as np

LAYERS, FFN, VOCAB, HEAD_DIM = 2, 96, 128, 64
CONTEXT, ORIGINAL_CONTEXT = 256, 64
SCALING_FACTOR = 4.0
OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "tiny_models"


def write(name, arch, seed, scaling=None, rope_factors=None, base=10000.0):
    """scaling: a RoPE scaling type, by SCALING_FACTOR; rope_factors: the rope_freqs tensor."""
    # qwen2 has no key_length of its own in llama.cpp: there the heads share the hidden size.
    hidden, query_heads, kv_heads = (128, 2, 1) if arch == "qwen2" else (64, 4, 2)
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(OUT / f"{name}.gguf", arch)
    writer.add_name(f"tiny {name}")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(FFN)
    writer.add_vocab_size(VOCAB)
    writer.add_head_count(query_heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(base)
    writer.add_tokenizer_model("no_vocab")
    if scaling is not None:
        writer.add_rope_scaling_type(scaling)
        writer.add_rope_scaling_factor(SCALING_FACTOR)
        writer.add_rope_scaling_orig_ctx_len(ORIGINAL_CONTEXT)

    def matrix(tensor, rows, columns, gain):
        values = rng.normal(0, gain / np.sqrt(columns), (rows, columns)).astype(np.float32)
        q8_0 = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(tensor, gguf.quants.quantize(values, q8_0), raw_dtype=q8_0)

    def vector(tensor, size, mean, deviation):
        writer.add_tensor(tensor, rng.normal(mean, deviation, size).astype(np.float32))

    matrix("token_embd.weight", VOCAB, hidden, 8)
    vector("output_norm.weight", hidden, 0.4, 0.1)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        vector(prefix + "attn_norm.weight", hidden, 1, 0.2)
        vector(prefix + "ffn_norm.weight", hidden, 1, 0.2)
        # Scores with a deviation above 1, so that the positions decide the answer.
        matrix(prefix + "attn_q.weight", query_heads * HEAD_DIM, hidden, 1.5)
        matrix(prefix + "attn_k.weight", kv_heads * HEAD_DIM, hidden, 1.5)
        matrix(prefix + "attn_v.weight", kv_heads * HEAD_DIM, hidden, 1.5)
        matrix(prefix + "attn_output.weight", hidden, query_heads * HEAD_DIM, 2)
        matrix(prefix + "ffn_gate.weight", FFN, hidden, 1)
        matrix(prefix + "ffn_up.weight", FFN, hidden, 1)
        matrix(prefix + "ffn_down.weight", hidden, FFN, 1)
        if arch == "qwen2":
            vector(prefix + "attn_q.bias", query_heads * HEAD_DIM, 0, 1)
            vector(prefix + "attn_k.bias", kv_heads * HEAD_DIM, 0, 1)
            vector(prefix + "attn_v.bias", kv_heads * HEAD_DIM, 0, 1)
        if arch == "qwen3":
            vector(prefix + "attn_q_norm.weight", HEAD_DIM, 1.5, 0.2)
            vector(prefix + "attn_k_norm.weight", HEAD_DIM, 1, 0.2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama3_factors(base, factor=8.0, low=1.0, high=4.0):
    """Frequency factors of Llama 3.1: 1 for short wavelengths, `factor` for long ones, a ramp between."""
    wavelengths = 2 * np.pi * base ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    smooth = np.clip((ORIGINAL_CONTEXT / wavelengths - low) / (high - low), 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    linear, yarn = gguf.RopeScalingType.LINEAR, gguf.RopeScalingType.YARN
    write("llama", "llama", 1)
    write("llama_linear", "llama", 2, scaling=linear)
    write("llama_yarn", "llama", 3, scaling=yarn)
    write("llama3_factors", "llama", 4, rope_factors=llama3_factors(500000.0), base=500000.0)
    write("qwen2_yarn", "qwen2", 5, scaling=yarn)
    write("qwen3", "qwen3", 6, base=1000000.0)


if __name__ == "__main__":
    main()
