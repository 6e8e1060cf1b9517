// The pickle of a rotation file, opcode for opcode as torch.save writes it (method.md 7.2 and 7.3).
#pragma once

#include <cstddef>
#include <vector>

#include "oscar/rotation_file.h"

namespace oscar::profile {

// Storages are numbered in the order of layers, rotation before eigenvalues.
std::vector<std::byte> RotationPickle(const RotationFile& file);

}  // namespace oscar::profile
