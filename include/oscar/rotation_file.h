// Released rotation files: the .pt pairs of OSCAR's RotationZoo, one file for K and one for V (method.md 7), read without running
// anything in them, turned into a CodecProfile of int2:oscar and back.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "oscar/codec_profile.h"
#include "oscar/result.h"
#include "oscar/types.h"

namespace oscar {

struct RotationFile {
  struct Layer {
    int id = 0;
    int num_heads = 0;               // 0: one rotation for all KV heads of the layer (format 1); else one each (format 2)
    std::vector<float> rotation;     // [d, d] or [num_heads, d, d], row-major
    std::vector<float> eigenvalues;  // [d] or [num_heads, d], ascending; empty when the file has none
  };
  std::string objective;  // "qqt_r_h_pbr" (K), "sst_r_h_pbr" (V), "hadamard" (either)
  int head_dim = 0;
  std::vector<Layer> layers;  // in the order of the file

  // Errors name the file and the layer: kCorruptData for a damaged or truncated file, wrong shapes, values that are not finite
  // or rotations that are not orthogonal (1e-4); kUnsupported for whatever tensor files do not have (code, above all).
  static Result<RotationFile> Load(const std::filesystem::path& path);
  // Writes the byte layout of torch.save, so that torch.load (also with weights_only=True) reads it.
  Status Save(const std::filesystem::path& path) const;

  // The same without a file.
  static Result<RotationFile> Parse(std::span<const std::byte> bytes);
  // `root`: the folder that all names of the archive carry; the file's stem.
  std::vector<std::byte> Serialize(const std::string& root) const;
};

struct RotationImportOptions {
  KvShape shape;
  float clip_k = 0.96f, clip_v = 0.92f;  // the files hold nothing about clipping
  Provenance provenance;                 // scope, metrics and composition are set from the files
};

// A profile of int2:oscar from a pair. kFailedPrecondition naming side and layer when the model has a layer that a file has not,
// another head dimension or another number of KV heads. `warning` (may be null): the files hold layers that the model has not.
Result<CodecProfile> ImportRotations(const RotationFile& keys, const RotationFile& values, const RotationImportOptions& options,
                                     std::string* warning);

// The pair (K, V) of a profile. kUnsupported for another method than int2:oscar, and for profiles with means, which the format
// cannot hold.
Result<std::pair<RotationFile, RotationFile>> ExportRotations(const CodecProfile& profile);

}  // namespace oscar
