// A copy of a GGUF file with every tensor in F32. Quantised weights make ggml round activations to 8 bits, which turns the last
// bit of any other sum into a difference of 1e-3 nats; with F32 weights a comparison of two programs shows their own arithmetic.
#pragma once

#include <string>

namespace oscar::oracle {

// Writes `to`. Empty when it succeeded, else one sentence why not.
std::string WidenWeights(const std::string& from, const std::string& to);

}  // namespace oscar::oracle
