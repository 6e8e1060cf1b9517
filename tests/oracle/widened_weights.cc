#include "tests/oracle/widened_weights.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include <ggml.h>
#include <gguf.h>

namespace oscar::oracle {
namespace {

struct Free {
  void operator()(ggml_context* context) const { ggml_free(context); }
  void operator()(gguf_context* file) const { gguf_free(file); }
};

}  // namespace

std::string WidenWeights(const std::string& from, const std::string& to) {
  ggml_context* tensors = nullptr;
  const std::unique_ptr<gguf_context, Free> source(gguf_init_from_file(from.c_str(), {.no_alloc = false, .ctx = &tensors}));
  if (source == nullptr) return from + " cannot be read";
  const std::unique_ptr<ggml_context, Free> source_tensors(tensors);
  size_t bytes = 0;
  int64_t count = 0;
  for (ggml_tensor* t = ggml_get_first_tensor(tensors); t != nullptr; t = ggml_get_next_tensor(tensors, t), ++count) {
    bytes += static_cast<size_t>(ggml_nelements(t)) * sizeof(float) + 2 * ggml_tensor_overhead() + GGML_MEM_ALIGN;
  }
  const std::unique_ptr<ggml_context, Free> wide(ggml_init({.mem_size = bytes, .mem_buffer = nullptr, .no_alloc = false}));
  if (wide == nullptr) return "no memory for " + std::to_string(bytes) + " bytes";
  const std::unique_ptr<gguf_context, Free> target(gguf_init_empty());
  gguf_set_kv(target.get(), source.get());
  gguf_set_val_u32(target.get(), "general.file_type", 0);  // GGML_FTYPE_ALL_F32
  for (int64_t i = 0; i < gguf_get_n_tensors(source.get()); ++i) {
    const char* name = gguf_get_tensor_name(source.get(), i);
    const ggml_tensor* tensor = ggml_get_tensor(tensors, name);
    ggml_tensor* copy = ggml_new_tensor(wide.get(), GGML_TYPE_F32, ggml_n_dims(tensor), tensor->ne);
    ggml_set_name(copy, name);
    const ggml_to_float_t to_float = ggml_get_type_traits(tensor->type)->to_float;
    if (tensor->type == GGML_TYPE_F32) {
      std::copy_n(static_cast<const float*>(tensor->data), ggml_nelements(tensor), static_cast<float*>(copy->data));
    } else if (to_float != nullptr) {
      to_float(tensor->data, static_cast<float*>(copy->data), ggml_nelements(tensor));
    } else {
      return from + ": tensor " + name + " has a type that cannot be widened";
    }
    gguf_add_tensor(target.get(), copy);
  }
  return gguf_write_to_file(target.get(), to.c_str(), /*only_meta=*/false) ? "" : to + " cannot be written";
}

}  // namespace oscar::oracle
