// LlamaCppRecord: what record_llamacpp.cc wrote about one model, and the divergence of our logits from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "oscar/result.h"

namespace oscar::oracle {

// File: "OSLCREF1", u32 processor flags, u32 vocabulary size, u32 number of generations, the generations, the text's token list, u32 kept logits
// per position, the positions. A token list is a u32 count and i32 ids.
struct LlamaCppRecord {
  struct Generation {
    std::vector<int32_t> prompt, generated;
    std::vector<float> margins;  // best logit minus second best, per generated token
  };
  // Logits after one token of the text: the largest ones, and the log of the sum of exp of all others.
  struct Position {
    std::vector<int32_t> ids;
    std::vector<float> logits;
    float rest = 0;
  };
  uint32_t processor_flags = 0;  // of the machine that recorded
  int vocab_size = 0;
  std::vector<Generation> generations;
  std::vector<int32_t> text;
  std::vector<Position> positions;

  static Result<LlamaCppRecord> Read(const std::filesystem::path& path);
};

// KL(llama.cpp || ours) in nats at one position, over the recorded tokens and one bucket for all others; never above the KL of
// the whole distributions. logits: [vocab_size].
double KlDivergence(const LlamaCppRecord::Position& position, std::span<const float> logits);

}  // namespace oscar::oracle
