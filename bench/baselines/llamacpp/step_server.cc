// llama.cpp behind a pipe, for `oscar bench --against`: one model and one KV cache; each line of standard input is a step of one
// sequence, "COUNT ID ID ...", and is answered on standard output by the seconds that llama_decode took, logits of the last
// token included, on the wall and of the processor. The first line written is what was opened. Built by build_llamacpp in this folder.
// Usage: step_server MODEL.gguf THREADS CONTEXT KV_TYPE      KV_TYPE: f16, bf16, q8_0, q4_0
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "llama.h"

namespace {

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "step_server: %s\n", what);
  std::exit(1);
}

ggml_type KvType(const char* name) {
  for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
    if (std::strcmp(name, ggml_type_name(type)) == 0) return type;
  }
  Fail("KV type is not f16, bf16, q8_0 or q4_0");
}

double ProcessorSeconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) Fail("usage: step_server MODEL.gguf THREADS CONTEXT KV_TYPE");
  llama_backend_init();
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());  // weights repacked, as by default
  if (model == nullptr) Fail("the model cannot be loaded");
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(std::atoi(argv[3]));
  params.n_batch = params.n_ubatch = 512;
  params.n_threads = params.n_threads_batch = std::atoi(argv[2]);
  params.type_k = params.type_v = KvType(argv[4]);
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.no_perf = true;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) Fail("the context cannot be made");
  std::printf("llama.cpp:%s\n", argv[4]);
  std::fflush(stdout);
  std::vector<llama_token> tokens;
  int count = 0;
  while (std::scanf("%d", &count) == 1) {
    tokens.resize(static_cast<size_t>(count));
    for (llama_token& token : tokens) {
      if (std::scanf("%d", &token) != 1) Fail("a step ends early");
    }
    const auto start = std::chrono::steady_clock::now();
    const double processor_start = ProcessorSeconds();
    for (int first = 0; first < count; first += 512) {
      const int n = count - first < 512 ? count - first : 512;
      if (llama_decode(context, llama_batch_get_one(tokens.data() + first, n)) != 0) Fail("llama_decode failed");
    }
    llama_synchronize(context);
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("%.9f %.9f\n", wall, ProcessorSeconds() - processor_start);
    std::fflush(stdout);
  }
  llama_free(context);
  llama_model_free(model);
}
