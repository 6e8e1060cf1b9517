// The small nouns that every public header shares: sides, shapes, strided views. No owners here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oscar {

// Tokens per page of storage, for BF16 pages and for encoded pages alike (method.md 5.1).
inline constexpr int kPageTokens = 64;

enum class KvSide : uint8_t { kKey, kValue };

// Attention geometry of a model. num_query_heads is a multiple of num_kv_heads; query head h reads KV head h / group().
struct KvShape {
  int num_layers = 0;
  int num_query_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int group() const { return num_query_heads / num_kv_heads; }
  bool operator==(const KvShape&) const = default;
};

// View of rows [num_tokens, num_heads, head_dim]; the last dimension is contiguous, strides count elements.
template <class T>
struct RowsView {
  T* data = nullptr;
  int num_tokens = 0;
  int num_heads = 0;
  int head_dim = 0;
  std::ptrdiff_t token_stride = 0;
  std::ptrdiff_t head_stride = 0;

  T* Row(int token, int head) const { return data + token * token_stride + head * head_stride; }
  // Rows [first, first + count) of the same heads. Precondition: they exist.
  RowsView Slice(int first, int count) const {
    return {data + first * token_stride, count, num_heads, head_dim, token_stride, head_stride};
  }
};

// Rows packed without gaps, token-major.
template <class T>
RowsView<T> PackedRows(T* data, int num_tokens, int num_heads, int head_dim) {
  return {data, num_tokens, num_heads, head_dim, static_cast<std::ptrdiff_t>(num_heads) * head_dim, head_dim};
}

// A CUDA stream on the GPU, ignored on the CPU.
using StreamHandle = void*;

}  // namespace oscar
