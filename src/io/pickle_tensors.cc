#include "src/io/pickle_tensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "src/base/float_bits.h"
#include "src/base/status_macros.h"

namespace oscar::io {
namespace {

// Limits on hostile input: 4096 layers need 600 KB, and a memo entry is copied whenever it is used.
constexpr std::size_t kMaxPickleBytes = 1 << 20;
constexpr std::size_t kMaxTextBytes = 200;
constexpr int kMaxDepth = 8;
constexpr std::size_t kMaxRank = 4;
constexpr int64_t kMaxTensorElements = int64_t{1} << 26;

enum class Global : uint8_t { kRebuildTensor, kOrderedDict, kFloat, kDouble, kHalf, kBFloat16 };
constexpr std::pair<std::string_view, Global> kGlobals[] = {
    {"torch._utils _rebuild_tensor_v2", Global::kRebuildTensor}, {"collections OrderedDict", Global::kOrderedDict},
    {"torch FloatStorage", Global::kFloat},                      {"torch DoubleStorage", Global::kDouble},
    {"torch HalfStorage", Global::kHalf},                        {"torch BFloat16Storage", Global::kBFloat16}};

struct Mark {};
struct EmptyOrderedDict {};
struct Storage {
  TorchDtype dtype;
  std::string key;
  int64_t elements;
};
struct Item;
using Tuple = std::shared_ptr<const std::vector<Item>>;
struct Item {
  std::variant<PickledValue, Mark, Global, Storage, Tuple, EmptyOrderedDict> content;
  int depth = 0;  // of tuples and dictionaries inside: bounds every recursion

  template <class T>
  const T* As() const {
    return std::get_if<T>(&content);
  }
  template <class T>
  const T* Value() const {
    const PickledValue* value = As<PickledValue>();
    return value == nullptr ? nullptr : std::get_if<T>(&value->content);
  }
  const PickledDict* dict() const {
    const PickledValue* value = As<PickledValue>();
    return value == nullptr ? nullptr : value->dict();
  }
};

class Machine {
 public:
  explicit Machine(std::span<const std::byte> bytes) : bytes_(bytes) {}

  Result<PickledValue> Run() {
    if (bytes_.size() > kMaxPickleBytes) return Status(StatusCode::kUnsupported, "pickle: " + std::to_string(bytes_.size()) + " bytes; at most 1 MiB is read");
    OSCAR_ASSIGN_OR_RETURN(const uint8_t first, Take<uint8_t>());
    OSCAR_ASSIGN_OR_RETURN(const uint8_t protocol, Take<uint8_t>());
    if (first != 0x80 || protocol < 2 || protocol > 4) return Unsupported("it does not begin with protocol 2, 3 or 4");
    for (;;) {
      OSCAR_ASSIGN_OR_RETURN(const uint8_t opcode, Take<uint8_t>());
      if (opcode == '.') break;
      OSCAR_TRY(Step(opcode));
    }
    if (at_ != bytes_.size()) return Corrupt("bytes behind its end");
    if (stack_.size() != 1 || stack_[0].As<PickledValue>() == nullptr) return Corrupt("it does not end with one value");
    return std::get<PickledValue>(std::move(stack_[0].content));
  }

 private:
  Status Corrupt(const std::string& why) const {
    return {StatusCode::kCorruptData, "pickle, byte " + std::to_string(at_) + ": " + why};
  }
  Status Unsupported(const std::string& why) const {
    return {StatusCode::kUnsupported, "pickle, byte " + std::to_string(at_) + ": " + why};
  }

  template <class T>
  Result<T> Take() {
    if (bytes_.size() - at_ < sizeof(T)) return Corrupt("it ends inside an opcode");
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  Result<std::string> TakeText(std::size_t size) {
    if (size > kMaxTextBytes) return Unsupported("a text of " + std::to_string(size) + " bytes; at most 200 are read");
    if (bytes_.size() - at_ < size) return Corrupt("it ends inside a text");
    std::string text(reinterpret_cast<const char*>(bytes_.data() + at_), size);
    at_ += size;
    return text;
  }
  Result<std::string> TakeLine() {
    std::string line;
    for (;;) {
      OSCAR_ASSIGN_OR_RETURN(const char c, Take<char>());
      if (c == '\n') return line;
      line += c;
      if (line.size() > kMaxTextBytes) return Corrupt("a name without end");
    }
  }

  void Push(PickledValue value) { stack_.push_back({std::move(value), 0}); }
  Result<Item> Pop() {
    if (stack_.empty()) return Corrupt("the stack is empty");
    Item item = std::move(stack_.back());
    stack_.pop_back();
    return item;
  }
  // Items above the last mark, which is removed.
  Result<std::vector<Item>> PopToMark() {
    std::size_t first = stack_.size();
    while (first > 0 && stack_[first - 1].As<Mark>() == nullptr) --first;
    if (first == 0) return Corrupt("no mark on the stack");
    std::vector<Item> items(std::make_move_iterator(stack_.begin() + static_cast<std::ptrdiff_t>(first)), std::make_move_iterator(stack_.end()));
    stack_.resize(first - 1);
    return items;
  }

  Status Step(uint8_t opcode) {
    switch (opcode) {
      case '}': Push({std::make_shared<PickledDict>()}); return {};
      case '(': stack_.push_back({Mark{}, 0}); return {};
      case 0x88: Push({true}); return {};
      case 0x89: Push({false}); return {};
      case 'K': return PushInteger<uint8_t>();
      case 'M': return PushInteger<uint16_t>();
      case 'J': return PushInteger<int32_t>();
      case 0x8A: return PushLong();
      case 'X': return PushText<uint32_t>();
      case 0x8C: return PushText<uint8_t>();
      case 'q': return Memoize<uint8_t>();
      case 'r': return Memoize<uint32_t>();
      case 0x94: return MemoizeAs(static_cast<uint32_t>(memo_.size()));
      case 'h': return Recall<uint8_t>();
      case 'j': return Recall<uint32_t>();
      case 0x95: return SkipFrame();
      case 'c': return PushNamedGlobal();
      case 0x93: return PushStackGlobal();
      case ')': return PushTuple({});
      case 0x85: return PushTopTuple(1);
      case 0x86: return PushTopTuple(2);
      case 0x87: return PushTopTuple(3);
      case 't': {
        OSCAR_ASSIGN_OR_RETURN(std::vector<Item> items, PopToMark());
        return PushTuple(std::move(items));
      }
      case 'Q': return PushStorage();
      case 'R': return Reduce();
      case 's': {
        OSCAR_ASSIGN_OR_RETURN(Item value, Pop());
        OSCAR_ASSIGN_OR_RETURN(Item key, Pop());
        return SetItems({std::move(key), std::move(value)});
      }
      case 'u': {
        OSCAR_ASSIGN_OR_RETURN(const std::vector<Item> items, PopToMark());
        return SetItems(items);
      }
      default: {
        char name[8];
        std::snprintf(name, sizeof(name), "0x%02x", opcode);
        return Unsupported(std::string("opcode ") + name + ", which tensor files do not have");
      }
    }
  }

  template <class T>
  Status PushInteger() {
    OSCAR_ASSIGN_OR_RETURN(const T value, Take<T>());
    Push({static_cast<int64_t>(value)});
    return {};
  }
  Status PushLong() {
    OSCAR_ASSIGN_OR_RETURN(const uint8_t size, Take<uint8_t>());
    if (size > 8) return Unsupported("an integer of " + std::to_string(size) + " bytes");
    if (bytes_.size() - at_ < size) return Corrupt("it ends inside an integer");
    uint64_t value = 0;
    for (uint8_t i = 0; i < size; ++i) value |= std::to_integer<uint64_t>(bytes_[at_ + i]) << (8 * i);
    if (size > 0 && size < 8 && (value >> (8 * size - 1) & 1) != 0) value |= ~uint64_t{0} << (8 * size);
    at_ += size;
    Push({static_cast<int64_t>(value)});
    return {};
  }
  template <class Length>
  Status PushText() {
    OSCAR_ASSIGN_OR_RETURN(const Length size, Take<Length>());
    OSCAR_ASSIGN_OR_RETURN(std::string text, TakeText(size));
    Push({std::move(text)});
    return {};
  }
  Status SkipFrame() {
    OSCAR_ASSIGN_OR_RETURN(const uint64_t size, Take<uint64_t>());
    return size > bytes_.size() - at_ ? Corrupt("a frame reaches beyond the end") : Status();
  }

  template <class Index>
  Status Memoize() {
    OSCAR_ASSIGN_OR_RETURN(const Index index, Take<Index>());
    return MemoizeAs(index);
  }
  Status MemoizeAs(uint32_t index) {
    if (stack_.empty() || stack_.back().As<Mark>() != nullptr) return Corrupt("nothing to remember");
    // Dictionaries are never recalled, so that none can hold itself.
    memo_[index] = stack_.back().dict() != nullptr ? std::nullopt : std::optional(stack_.back());
    return {};
  }
  template <class Index>
  Status Recall() {
    OSCAR_ASSIGN_OR_RETURN(const Index index, Take<Index>());
    const auto found = memo_.find(index);
    if (found == memo_.end()) return Corrupt("it recalls " + std::to_string(index) + ", which it never remembered");
    if (!found->second) return Unsupported("a dictionary used twice");
    stack_.push_back(*found->second);
    return {};
  }

  Status PushGlobal(const std::string& name) {
    for (const auto& [known, global] : kGlobals) {
      if (known == name) {
        stack_.push_back({global, 0});
        return {};
      }
    }
    return Unsupported("global \"" + name + "\", which tensor files do not have");
  }
  Status PushNamedGlobal() {
    OSCAR_ASSIGN_OR_RETURN(const std::string module, TakeLine());
    OSCAR_ASSIGN_OR_RETURN(const std::string name, TakeLine());
    return PushGlobal(module + " " + name);
  }
  Status PushStackGlobal() {
    OSCAR_ASSIGN_OR_RETURN(const Item name, Pop());
    OSCAR_ASSIGN_OR_RETURN(const Item module, Pop());
    if (name.Value<std::string>() == nullptr || module.Value<std::string>() == nullptr) return Corrupt("a global whose name is no text");
    return PushGlobal(*module.Value<std::string>() + " " + *name.Value<std::string>());
  }

  Status PushTuple(std::vector<Item> items) {
    int depth = 0;
    for (const Item& item : items) {
      if (item.As<Mark>() != nullptr || item.dict() != nullptr) return Unsupported("a tuple that holds a dictionary or a mark");
      depth = std::max(depth, item.depth + 1);
    }
    if (depth > kMaxDepth) return Unsupported("tuples nested too deep");
    stack_.push_back({std::make_shared<const std::vector<Item>>(std::move(items)), depth});
    return {};
  }
  Status PushTopTuple(std::size_t count) {
    if (stack_.size() < count) return Corrupt("the stack is empty");
    std::vector<Item> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return PushTuple(std::move(items));
  }

  // The tuple ("storage", type, key, location, elements).
  Status PushStorage() {
    OSCAR_ASSIGN_OR_RETURN(const Item item, Pop());
    const Tuple* tuple = item.As<Tuple>();
    if (tuple == nullptr || (*tuple)->size() != 5) return Corrupt("a persistent id that is no storage");
    const std::vector<Item>& parts = **tuple;
    const auto *tag = parts[0].Value<std::string>(), *key = parts[2].Value<std::string>(), *location = parts[3].Value<std::string>();
    const auto* global = parts[1].As<Global>();
    const auto* elements = parts[4].Value<int64_t>();
    if (tag == nullptr || *tag != "storage" || global == nullptr || key == nullptr || location == nullptr || elements == nullptr) {
      return Corrupt("a persistent id that is no storage");
    }
    if (key->empty() || key->find_first_not_of("0123456789") != std::string::npos || *elements < 0) return Corrupt("a storage of a strange name or size");
    Storage storage{TorchDtype::kF32, *key, *elements};
    switch (*global) {
      case Global::kFloat: storage.dtype = TorchDtype::kF32; break;
      case Global::kDouble: storage.dtype = TorchDtype::kF64; break;
      case Global::kHalf: storage.dtype = TorchDtype::kF16; break;
      case Global::kBFloat16: storage.dtype = TorchDtype::kBF16; break;
      default: return Corrupt("a storage of something that is no storage type");
    }
    stack_.push_back({std::move(storage), 0});
    return {};
  }

  Result<std::vector<int64_t>> Integers(const Item& item) const {
    const Tuple* tuple = item.As<Tuple>();
    if (tuple == nullptr || (*tuple)->size() > kMaxRank) return Corrupt("a tensor whose shape is no tuple of at most 4 numbers");
    std::vector<int64_t> numbers;
    for (const Item& number : **tuple) {
      if (number.Value<int64_t>() == nullptr || *number.Value<int64_t>() < 0) return Corrupt("a tensor whose shape holds something else than a count");
      numbers.push_back(*number.Value<int64_t>());
    }
    return numbers;
  }

  Status Reduce() {
    OSCAR_ASSIGN_OR_RETURN(const Item arguments, Pop());
    OSCAR_ASSIGN_OR_RETURN(const Item callee, Pop());
    const Tuple* tuple = arguments.As<Tuple>();
    const Global* global = callee.As<Global>();
    if (tuple == nullptr || global == nullptr) return Corrupt("a call of something that is no function");
    const std::vector<Item>& parts = **tuple;
    if (*global == Global::kOrderedDict && parts.empty()) {
      stack_.push_back({EmptyOrderedDict{}, 0});
      return {};
    }
    if (*global != Global::kRebuildTensor || parts.size() != 6) return Unsupported("a call that tensor files do not have");
    const Storage* storage = parts[0].As<Storage>();
    const auto* offset = parts[1].Value<int64_t>();
    if (storage == nullptr || offset == nullptr || *offset < 0 || parts[4].Value<bool>() == nullptr || parts[5].As<EmptyOrderedDict>() == nullptr) {
      return Corrupt("a tensor whose parts do not fit");
    }
    PickledTensor tensor{storage->dtype, storage->key, storage->elements, *offset, {}, {}};
    OSCAR_ASSIGN_OR_RETURN(tensor.shape, Integers(parts[2]));
    OSCAR_ASSIGN_OR_RETURN(tensor.strides, Integers(parts[3]));
    if (tensor.shape.size() != tensor.strides.size()) return Corrupt("a tensor with another number of strides than dimensions");
    Push({std::move(tensor)});
    return {};
  }

  // Key, value, key, value, ... into the dictionary on top of the stack.
  Status SetItems(const std::vector<Item>& items) {
    if (stack_.empty() || stack_.back().dict() == nullptr) return Corrupt("items for something that is no dictionary");
    if (items.size() % 2 != 0) return Corrupt("a key without a value");
    PickledDict& dict = *std::get<std::shared_ptr<PickledDict>>(std::get<PickledValue>(stack_.back().content).content);
    for (std::size_t i = 0; i < items.size(); i += 2) {
      const PickledValue *key = items[i].As<PickledValue>(), *value = items[i + 1].As<PickledValue>();
      if (key == nullptr || value == nullptr || (items[i].Value<std::string>() == nullptr && items[i].Value<int64_t>() == nullptr)) {
        return Unsupported("a dictionary with a key or a value that tensor files do not have");
      }
      stack_.back().depth = std::max(stack_.back().depth, items[i + 1].depth + 1);
      if (stack_.back().depth > kMaxDepth) return Unsupported("dictionaries nested too deep");
      dict.items.emplace_back(*key, *value);
    }
    return {};
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  std::vector<Item> stack_;
  std::map<uint32_t, std::optional<Item>> memo_;
};

std::size_t ElementBytes(TorchDtype dtype) {
  switch (dtype) {
    case TorchDtype::kF32: return 4;
    case TorchDtype::kF64: return 8;
    case TorchDtype::kF16:
    case TorchDtype::kBF16: return 2;
  }
  return 0;
}

float LoadElement(TorchDtype dtype, const std::byte* at) {
  if (dtype == TorchDtype::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  if (dtype == TorchDtype::kF64) {
    double value;
    std::memcpy(&value, at, sizeof(value));
    return static_cast<float>(value);
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == TorchDtype::kF16 ? base::F32FromF16(bits) : base::F32FromBf16(bits);
}

}  // namespace

const PickledValue* PickledDict::Find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    const auto* text = std::get_if<std::string>(&name.content);
    const auto* number = std::get_if<int64_t>(&name.content);
    if (text != nullptr ? *text == key : number != nullptr && std::to_string(*number) == key) return &value;
  }
  return nullptr;
}

Result<PickledValue> ParsePickle(std::span<const std::byte> bytes) { return Machine(bytes).Run(); }

Result<std::vector<float>> ReadTensor(const PickledTensor& tensor, std::span<const std::byte> storage) {
  const auto corrupt = [&](const std::string& why) {
    return Status(StatusCode::kCorruptData, "tensor of storage " + tensor.storage + ": " + why);
  };
  const std::size_t element_bytes = ElementBytes(tensor.dtype);
  if (storage.size() % element_bytes != 0 || static_cast<int64_t>(storage.size() / element_bytes) != tensor.storage_elements) {
    return corrupt("the storage has " + std::to_string(storage.size()) + " bytes, the pickle speaks of " +
                   std::to_string(tensor.storage_elements) + " elements");
  }
  int64_t count = 1, last = tensor.offset;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(count, tensor.shape[i], &count) || count > kMaxTensorElements) return corrupt("it has more than 2^26 elements");
    if (tensor.shape[i] == 0) continue;
    if (__builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &reach) || __builtin_add_overflow(last, reach, &last)) {
      return corrupt("it reaches beyond its storage");
    }
  }
  if (count == 0) return std::vector<float>{};
  if (last >= tensor.storage_elements) return corrupt("it reaches beyond its storage");
  std::vector<float> values(static_cast<std::size_t>(count));
  std::vector<int64_t> index(tensor.shape.size(), 0);
  for (float& value : values) {
    int64_t at = tensor.offset;
    for (std::size_t i = 0; i < index.size(); ++i) at += index[i] * tensor.strides[i];
    value = LoadElement(tensor.dtype, storage.data() + static_cast<std::size_t>(at) * element_bytes);
    for (std::size_t i = index.size(); i-- > 0;) {
      if (++index[i] < tensor.shape[i]) break;
      index[i] = 0;
    }
  }
  return values;
}

}  // namespace oscar::io
