// The ceilings of the machine, measured in the run whose results stand beside them.
#pragma once

#include <vector>

#include "oscar/executor.h"
#include "oscar/result.h"

namespace oscar::tools {

inline constexpr double kGiga = 1e9;  // bytes and operations are printed in billions

// Per second, all threads together, sorted, one per repeat; a list is empty where the machine has no such thing.
struct Ceilings {
  std::vector<double> read_bytes, byte_dots;
};

// kResourceExhausted without the memory that is read.
Result<Ceilings> MeasureCeilings(Executor& executor);

// Precondition: not empty.
double Median(const std::vector<double>& sorted);

}  // namespace oscar::tools
