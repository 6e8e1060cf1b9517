// What a profile is checked against: which model a file holds. Cheap enough for every start: no pass over the weights.
#pragma once

#include <string>
#include <string_view>

#include "oscar/result.h"
#include "src/io/gguf.h"

namespace oscar::engine {

struct ModelIdentity {
  std::string name;         // general.name, or the stem of the file name
  // SHA-256 (hex) over the metadata, the tensor directory and 4 KiB from the head and the middle of every tensor: differs
  // between two quantisations of one model and between two sets of weights.
  std::string fingerprint;
  // SHA-256 (hex) over what a requantisation leaves alone: architecture, attention and RoPE keys, shapes, vocabulary,
  // and samples of the f32 vectors (norms and biases), which no quantisation touches and no two models share.
  std::string identity;
};

// kCorruptData when a tensor of the directory lies outside the file.
Result<ModelIdentity> IdentifyModel(const io::GgufFile& file, std::string_view file_stem);

}  // namespace oscar::engine
