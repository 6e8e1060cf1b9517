// llama.cpp behind a pipe, for `oscar bench --against`: one model and one KV cache, its sequence grown by the lines of standard input,
// each of which is answered by one line of standard output:
//   COUNT ID ID ...  a step of COUNT tokens: the seconds that llama_decode took, logits of the last token included, on the wall and of the processor
//   clear            the sequence is empty again: "0 0"
//   fill N           the sequence has N tokens, whose rows are copies of others (speed does not depend on what they hold): "0 0"
// The first line written is "NAME BYTES": what was opened, and the anonymous memory of the process before the context was made.
// Usage: step_server MODEL.gguf THREADS CONTEXT KV_TYPE      KV_TYPE: f16, bf16, q8_0, q4_0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <unistd.h>

#include "llama.h"

namespace {

constexpr int kBatch = 512;
constexpr llama_seq_id kSequence = 0, kCopy = 1;

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

// Resident and of no file.
long long AnonymousBytes() {
  long long total = 0, resident = 0, shared = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%lld %lld %lld", &total, &resident, &shared) != 3) Fail("/proc/self/statm cannot be read");
  std::fclose(file);
  return (resident - shared) * sysconf(_SC_PAGESIZE);
}

void Decode(llama_context* context, std::vector<llama_token>& tokens) {
  const int count = static_cast<int>(tokens.size());
  for (int first = 0; first < count; first += kBatch) {
    if (llama_decode(context, llama_batch_get_one(tokens.data() + first, std::min(kBatch, count - first))) != 0) Fail("llama_decode failed");
  }
  llama_synchronize(context);
}

// Grows the sequence by copies of its first tokens, positions and all: their saved states, of 64, 32, ... tokens.
class Filler {
 public:
  explicit Filler(llama_context* context) : context_(context), memory_(llama_get_memory(context)) {}

  void Fill(int have, int wanted) {
    if (states_.empty()) {
      if (have != 0) Fail("the first fill is one of an empty sequence");
      for (const int first = std::min(wanted, 64); have < first;) have += DecodeSome(std::min(first - have, 8));
      for (int count = 1; count <= have; count *= 2) states_.push_back(StateOfFirst(count));
    }
    while (have < wanted) {
      size_t size = states_.size() - 1;
      while ((1 << size) > wanted - have) --size;
      const std::vector<uint8_t>& state = states_[size];
      if (llama_state_seq_set_data(context_, state.data(), state.size(), kCopy) == 0) Fail("the state cannot be written");
      llama_memory_seq_cp(memory_, kCopy, kSequence, -1, -1);
      llama_memory_seq_rm(memory_, kCopy, -1, -1);
      have += 1 << size;
    }
  }

 private:
  int DecodeSome(int count) {
    std::vector<llama_token> tokens(static_cast<size_t>(count), 1);
    Decode(context_, tokens);
    return count;
  }
  std::vector<uint8_t> StateOfFirst(int count) {
    llama_memory_seq_cp(memory_, kSequence, kCopy, 0, count);
    std::vector<uint8_t> state(llama_state_seq_get_size(context_, kCopy));
    if (llama_state_seq_get_data(context_, state.data(), state.size(), kCopy) == 0) Fail("the state cannot be read");
    llama_memory_seq_rm(memory_, kCopy, -1, -1);
    return state;
  }

  llama_context* const context_;
  const llama_memory_t memory_;
  std::vector<std::vector<uint8_t>> states_;  // [i]: of the first 2^i tokens
};

void Serve(llama_context* context) {
  Filler filler(context);
  int length = 0;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first == "clear") {
      llama_memory_clear(llama_get_memory(context), false);
      length = 0;
      std::puts("0 0");
    } else if (first == "fill") {
      int wanted = 0;
      if (!(words >> wanted) || wanted < length) Fail("fill: no length, or one that is shorter than the sequence");
      filler.Fill(length, wanted);
      length = wanted;
      std::puts("0 0");
    } else {
      std::vector<llama_token> tokens(static_cast<size_t>(std::max(0, std::atoi(first.c_str()))));
      for (llama_token& token : tokens) {
        if (!(words >> token)) Fail("a step ends early");
      }
      const auto start = std::chrono::steady_clock::now();
      const double processor_start = ProcessorSeconds();
      Decode(context, tokens);
      const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      length += static_cast<int>(tokens.size());
      std::printf("%.9f %.9f\n", wall, ProcessorSeconds() - processor_start);
    }
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) Fail("usage: step_server MODEL.gguf THREADS CONTEXT KV_TYPE");
  llama_backend_init();
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());  // weights repacked, as by default
  if (model == nullptr) Fail("the model cannot be loaded");
  const long long bytes_before = AnonymousBytes();
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(std::atoi(argv[3]));
  params.n_batch = params.n_ubatch = kBatch;
  params.n_threads = params.n_threads_batch = std::atoi(argv[2]);
  params.type_k = params.type_v = KvType(argv[4]);
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.n_seq_max = 2;  // the second for fill only, in the cells of the first
  params.kv_unified = true;
  params.no_perf = true;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) Fail("the context cannot be made");
  std::printf("llama.cpp:%s %lld\n", argv[4], bytes_before);
  std::fflush(stdout);
  Serve(context);
  llama_free(context);
  llama_model_free(model);
}
