// Structs that cross to the decode attention kernels (gpu.md 5). Plain data, no CUDA types: bf16 is
// uint16_t here.
#pragma once

#include <cstdint>

namespace oscar::kernels::cuda {

// One piece of work of one CTA: of one (sequence, KV head), INT2 pages [first_page, + num_pages)
// and tiles of 16 BF16 rows [first_tile, + num_tiles), either may be empty. Its result goes to
// partial slot `slot`; the pair (sequence, head) owns the slots [pair_first_slot, pair_first_slot +
// pair_num_slots).
struct DecodeItem {
  int32_t sequence;
  int32_t head;
  int32_t first_page;
  int32_t num_pages;
  int32_t first_tile;
  int32_t num_tiles;
  int32_t num_rows;  // BF16 rows of the whole sequence: where the last tile ends
  int32_t slot;
  int32_t pair_first_slot;
  int32_t pair_num_slots;
  // Slots of the pair with the other half of the tokens (JoinParams); 0: there is none.
  int32_t sibling_first_slot;
  int32_t sibling_num_slots;
};
static_assert(sizeof(DecodeItem) == 48);

// The share of a CTA: its first item in place (one load less at the start), then items [next, end)
// of the list.
struct DecodeStart {
  DecodeItem first;
  int32_t has_first;
  int32_t next;
  int32_t end;
  int32_t unused_padding;
};
static_assert(sizeof(DecodeStart) == 64);

// Separate spaces (gpu.md 5.1, online mode): a sequence stands twice in the plan, as its INT2 pages (number i < num_code_sequences, queries
// in code space) and as its BF16 rows (number num_code_sequences + i, raw queries); LinkSpaces makes the pairs siblings. The CTA that
// completes both writes the rows (code part A_V^-1 + mu_V) and row part, weighted, in f32, instead of DecodeParams::out.
struct JoinParams {
  float* out;  // row i, head h at out + i * token_stride + h * head_stride; null: no join
  int64_t token_stride;
  int64_t head_stride;
  const float* matrix;  // A_V^-1, [d, d] f32 row-major of KV head h at matrix + h * matrix_stride; null: the identity
  int64_t matrix_stride;
  const float* mean;  // mu_V, [d] f32 likewise, or null
  int64_t mean_stride;
  int32_t num_code_sequences;  // 0: nothing is encoded, every sequence stands once
};

struct DecodeParams {
  const uint16_t* queries;  // [B, Hq, d] bf16, code space: for INT2 pages and BF16 rows (common
                            // space, gpu.md 5.1)
  const float* beta;        // [B, Hq] f32: kappa * (q . mu_K), or null
  // The rotating key mean per page, kappa * (q . mu(n)), or null: [B, kv_heads, code_table_stride,
  // heads of the kernel (4, 8 or 16)] f32, page n at entry n of the code table. See
  // RotatingMeanParams.
  const float* page_beta;
  const float* value_mean;  // [kv_heads, d] f32, code space, or null
  const uint8_t*
      code_pool;  // layer base; block of (page, head) at (page * kv_heads + head) * BlockBytes(d)
  const uint8_t* row_pool;  // layer base; block of (page, head) at (page * kv_heads + head) * 256 d
  const int32_t* code_table;  // [B, code_table_stride] page ids; entry i: page i behind the sink
  const int32_t* row_table;   // [B, row_table_stride] page ids; entry i: the i-th page that holds
                              // BF16 rows, by position
  int32_t code_table_stride;
  int32_t row_table_stride;

  const DecodeStart* starts;  // [gridDim.x]
  const DecodeItem* items;
  int32_t overlaps_start;  // set by the launch: pages may be requested before the launches ahead
                           // have finished

  float* partials;         // [slots][heads of a tile][d] f32, then stats
  float* partial_stats;    // [slots][heads of a tile][4] f32: reference m (log2 units), sum l, its
                           // INT2 part, unused
  int32_t* pair_counters;  // [B * kv_heads], zero before and after a launch

  uint16_t* out;   // [B, Hq, d] bf16
  float* out_f32;  // [B, Hq, d] f32 or null
  int32_t kv_heads;
  int32_t group;  // query heads per KV head
  float kappa;    // softmax scale * log2(e)
  float* out_lse;  // [B, Hq] natural log of the sum of exp(scores), -inf without tokens; or null
  JoinParams join;
};

}  // namespace oscar::kernels::cuda
