#include "tests/oracle/llamacpp_record.h"

#include <algorithm>
#include <cmath>
#include <fstream>

namespace oscar::oracle {
namespace {

class Fields {
 public:
  explicit Fields(const std::filesystem::path& path) : file_(path, std::ios::binary) {}
  bool ok() const { return static_cast<bool>(file_); }
  template <class T>
  T Read() {
    T value{};
    file_.read(reinterpret_cast<char*>(&value), sizeof(T));
    return value;
  }
  template <class T>
  std::vector<T> ReadMany(size_t count) {
    std::vector<T> values(std::min<size_t>(count, 1 << 20));
    file_.read(reinterpret_cast<char*>(values.data()), static_cast<long>(values.size() * sizeof(T)));
    return values;
  }
  std::vector<int32_t> ReadTokens() { return ReadMany<int32_t>(Read<uint32_t>()); }

 private:
  std::ifstream file_;
};

double LogSumExp(std::span<const double> values) {
  const double maximum = *std::ranges::max_element(values);
  double sum = 0;
  for (double value : values) sum += std::exp(value - maximum);
  return maximum + std::log(sum);
}

}  // namespace

Result<LlamaCppRecord> LlamaCppRecord::Read(const std::filesystem::path& path) {
  Fields file(path);
  const std::vector<char> magic = file.ReadMany<char>(8);
  if (!file.ok() || std::string(magic.begin(), magic.end()) != "OSLCREF1") {
    return {StatusCode::kCorruptData, path.string() + " is not a record of llama.cpp"};
  }
  LlamaCppRecord record;
  record.processor_flags = file.Read<uint32_t>();
  record.vocab_size = static_cast<int>(file.Read<uint32_t>());
  record.generations.resize(std::min<uint32_t>(file.Read<uint32_t>(), 1024));
  for (Generation& generation : record.generations) {
    generation.prompt = file.ReadTokens();
    generation.generated = file.ReadTokens();
    generation.margins = file.ReadMany<float>(generation.generated.size());
  }
  record.text = file.ReadTokens();
  const uint32_t top = file.Read<uint32_t>();
  record.positions.resize(record.text.size());
  for (Position& position : record.positions) {
    position.ids = file.ReadMany<int32_t>(top);
    position.logits = file.ReadMany<float>(top);
    position.rest = file.Read<float>();
  }
  if (!file.ok()) return {StatusCode::kCorruptData, path.string() + " is cut off"};
  return record;
}

double KlDivergence(const LlamaCppRecord::Position& position, std::span<const float> logits) {
  std::vector<double> theirs(position.logits.begin(), position.logits.end()), ours, our_rest;
  std::vector<bool> kept(logits.size());
  for (int32_t id : position.ids) {
    ours.push_back(logits[static_cast<size_t>(id)]);
    kept[static_cast<size_t>(id)] = true;
  }
  for (size_t id = 0; id < logits.size(); ++id) {
    if (!kept[id]) our_rest.push_back(logits[id]);
  }
  if (!our_rest.empty()) {
    theirs.push_back(position.rest);
    ours.push_back(LogSumExp(our_rest));
  }
  const double their_total = LogSumExp(theirs), our_total = LogSumExp(ours);
  double divergence = 0;
  for (size_t i = 0; i < theirs.size(); ++i) {
    const double p = theirs[i] - their_total, q = ours[i] - our_total;
    divergence += std::exp(p) * (p - q);
  }
  return divergence;
}

}  // namespace oscar::oracle
