// The profile file: a CodecProfile as safetensors. docs/profile-format.md is normative; CodecProfile::Load and Save are
// the public face.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "oscar/codec_profile.h"
#include "oscar/result.h"
#include "src/io/safetensors.h"

namespace oscar {

inline constexpr int kProfileFormatVersion = 1;

// Reads a profile from the bytes of its file. kCorruptData naming tensor or field, or layer, KV head and side;
// kUnsupported for another format version. Every value is checked: counts, sizes, finite numbers, orthogonality, the
// digest of the content.
Result<CodecProfile> ParseProfile(std::span<const std::byte> bytes);

// The bytes of the file of a profile: equal profiles (provenance included) give equal bytes. Equal matrices are stored
// once.
std::vector<std::byte> SerializeProfile(const CodecProfile& profile);

// SHA-256 in hexadecimal over all that the file says but the field content_sha256 itself: metadata, then tensors, each
// in byte order of names. Every text and every tensor's bytes are preceded by their length, every shape by its rank, as
// u64 little-endian; a tensor is name, dtype name, shape, bytes.
std::string ContentDigest(const io::SafetensorsFile& file);

}  // namespace oscar
