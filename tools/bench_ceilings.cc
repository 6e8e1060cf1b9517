#include "tools/bench_ceilings.h"

#include <algorithm>
#include <fmt/format.h>

#include "src/base/machine_ceiling.h"

namespace oscar::tools {
namespace {

constexpr size_t kCeilingBytes = size_t{256} << 20;  // beyond any cache of a core
constexpr int kCeilingRepeats = 7;

}  // namespace

Result<Ceilings> MeasureCeilings(Executor& executor) {
  Ceilings ceilings{base::ReadRates(executor, kCeilingBytes, kCeilingRepeats), base::ByteDotRates(executor, kCeilingRepeats)};
  if (ceilings.read_bytes.empty()) return Status(StatusCode::kResourceExhausted, fmt::format("bench: no {} MiB for the read ceiling", kCeilingBytes >> 20));
  std::sort(ceilings.read_bytes.begin(), ceilings.read_bytes.end());
  std::sort(ceilings.byte_dots.begin(), ceilings.byte_dots.end());
  return ceilings;
}

double Median(const std::vector<double>& sorted) { return sorted[sorted.size() / 2]; }

}  // namespace oscar::tools
