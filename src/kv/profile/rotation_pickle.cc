#include "src/kv/profile/rotation_pickle.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

namespace oscar::profile {
namespace {

// Writes protocol 2. A text or a global that has been written before is recalled from the memo, as Python does with objects that
// are the same; every new object is remembered.
class Writer {
 public:
  void Byte(uint8_t value) { out_.push_back(static_cast<std::byte>(value)); }
  void Remember() {
    if (next_ < 256) {
      Byte('q');
      Byte(static_cast<uint8_t>(next_++));
    } else {
      Byte('r');
      Little(next_++, 4);
    }
  }
  void Little(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) Byte(static_cast<uint8_t>(value >> (8 * i)));
  }
  void Integer(int64_t value) {
    if (value < 256) {
      Byte('K');
      Little(static_cast<uint64_t>(value), 1);
    } else if (value < 65536) {
      Byte('M');
      Little(static_cast<uint64_t>(value), 2);
    } else {
      Byte('J');
      Little(static_cast<uint64_t>(value), 4);
    }
  }
  // `shared`: one object of the writing program, recalled when it occurs again.
  void Text(const std::string& text, bool shared) {
    if (shared && Recall("text " + text)) return;
    Byte('X');
    Little(text.size(), 4);
    for (const char c : text) Byte(static_cast<uint8_t>(c));
    Keep("text " + text, shared);
  }
  void Global(const std::string& module, const std::string& name) {
    const std::string key = "global " + module + " " + name;
    if (Recall(key)) return;
    Byte('c');
    for (const char c : module + "\n" + name + "\n") Byte(static_cast<uint8_t>(c));
    Keep(key, true);
  }
  std::vector<std::byte> Finish() {
    Byte('.');
    return std::move(out_);
  }

 private:
  bool Recall(const std::string& key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) return false;
    if (found->second < 256) {
      Byte('h');
      Byte(static_cast<uint8_t>(found->second));
    } else {
      Byte('j');
      Little(found->second, 4);
    }
    return true;
  }
  void Keep(const std::string& key, bool shared) {
    if (shared) memo_[key] = next_;
    Remember();
  }

  std::vector<std::byte> out_;
  std::map<std::string, uint32_t> memo_;
  uint32_t next_ = 0;
};

void PutIntegers(const std::vector<int64_t>& numbers, Writer& out) {
  if (numbers.size() > 3) out.Byte('(');
  for (const int64_t number : numbers) out.Integer(number);
  const uint8_t opcodes[] = {')', 0x85, 0x86, 0x87};
  out.Byte(numbers.size() > 3 ? 't' : opcodes[numbers.size()]);
  out.Remember();
}

void PutTensor(int storage, const std::vector<int64_t>& shape, Writer& out) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * shape[i];
  out.Global("torch._utils", "_rebuild_tensor_v2");
  out.Byte('(');
  out.Byte('(');
  out.Text("storage", true);
  out.Global("torch", "FloatStorage");
  out.Text(std::to_string(storage), false);
  out.Text("cpu", true);
  out.Integer(strides[0] * shape[0]);
  out.Byte('t');
  out.Remember();
  out.Byte('Q');
  out.Integer(0);
  PutIntegers(shape, out);
  PutIntegers(strides, out);
  out.Byte(0x89);  // requires no gradient
  out.Global("collections", "OrderedDict");
  out.Byte(')');
  out.Byte('R');
  out.Remember();
  out.Byte('t');
  out.Remember();
  out.Byte('R');
  out.Remember();
}

}  // namespace

std::vector<std::byte> RotationPickle(const RotationFile& file) {
  const bool per_head = !file.layers.empty() && file.layers[0].num_heads > 0;
  Writer out;
  out.Byte(0x80);
  out.Byte(2);
  out.Byte('}');
  out.Remember();
  out.Byte('(');
  out.Text("format_version", true);
  out.Integer(per_head ? 2 : 1);
  out.Text("objective", true);
  out.Text(file.objective, true);
  out.Text("source_grouping", true);
  out.Text(per_head ? "head" : "layer", true);
  out.Text("layers", true);
  out.Byte('}');
  out.Remember();
  if (file.layers.size() > 1) out.Byte('(');
  int storage = 0;
  for (const RotationFile::Layer& layer : file.layers) {
    const int64_t d = file.head_dim;
    out.Integer(layer.id);
    out.Byte('}');
    out.Remember();
    out.Byte('(');
    out.Text("layer_id", true);
    out.Integer(layer.id);
    out.Text("rotation", true);
    PutTensor(storage++, layer.num_heads > 0 ? std::vector<int64_t>{layer.num_heads, d, d} : std::vector<int64_t>{d, d}, out);
    if (!layer.eigenvalues.empty()) {
      out.Text("eigenvalues", true);
      PutTensor(storage++, layer.num_heads > 0 ? std::vector<int64_t>{layer.num_heads, d} : std::vector<int64_t>{d}, out);
    }
    out.Byte('u');
  }
  if (!file.layers.empty()) out.Byte(file.layers.size() > 1 ? 'u' : 's');
  out.Byte('u');
  return out.Finish();
}

}  // namespace oscar::profile
