// Records what llama.cpp answers, for tests/oracle/llamacpp_test.cc to compare with. Compiled by record_llamacpp.sh against a
// llama.cpp tree; never part of the build.
//   record_llamacpp MODEL.gguf OUT.bin --text FILE       prompts and text go through the tokenizer of the model
//   record_llamacpp MODEL.gguf OUT.bin --random-tokens N a model without a tokenizer: N pseudo-random token ids
//   --cache f16|f32 (default f16)   --threads N (default 1; the answers do not depend on it)
//   --widen FILE     writes a copy of the model with F32 weights there and records that (widened_weights.h)
// llama.cpp runs on the CPU without flash attention (its CPU kernel accumulates in f16) and without repacked weights.
// The layout of OUT.bin is that of LlamaCppRecord in llamacpp_record.h; all fields are little-endian.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "llama.h"
#include "processor_flags.h"
#include "widened_weights.h"

namespace {

constexpr int kGenerated = 64;    // greedy tokens per prompt
constexpr int kTextTokens = 512;  // tokens of the text whose logits are recorded
constexpr int kTop = 64;          // logits kept per position
constexpr int kContext = 1024;

const char* const kPrompts[] = {
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nWrite a long story about a lighthouse "
    "keeper who finds a map.<|im_end|>\n<|im_start|>assistant\n",
    "// Returns the greatest common divisor of a and b.\nint Gcd(int a, int b) {",
    "The history of bread begins long before the first cities. People who gathered wild grain learned to grind it between "
    "stones, to mix the meal with water and to bake the paste on hot rocks. In the centuries that followed,",
};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "record_llamacpp: %s\n", message.c_str());
  std::exit(1);
}

struct Options {
  std::string model, out, text, widened;
  int random_tokens = 0;
  int threads = 1;
  ggml_type cache_type = GGML_TYPE_F16;
};

Options ParseOptions(int argc, char** argv) {
  if (argc < 5) Fail("usage: record_llamacpp MODEL OUT (--text FILE | --random-tokens N) [--cache f16|f32] [--threads N] [--widen FILE]");
  Options options;
  options.model = argv[1];
  options.out = argv[2];
  for (int i = 3; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--text") options.text = value;
    else if (name == "--widen") options.widened = value;
    else if (name == "--random-tokens") options.random_tokens = std::atoi(value.c_str());
    else if (name == "--threads") options.threads = std::atoi(value.c_str());
    else if (name == "--cache" && (value == "f16" || value == "f32"))
      options.cache_type = value == "f16" ? GGML_TYPE_F16 : GGML_TYPE_F32;
    else Fail("bad option " + name + " " + value);
  }
  return options;
}

class Recorder {
 public:
  explicit Recorder(const Options& options) : out_(options.out, std::ios::binary) {
    llama_backend_init();
    llama_log_set([](ggml_log_level level, const char* text, void*) {
      if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
    }, nullptr);
    llama_model_params model_params = llama_model_default_params();
    model_params.use_extra_bufts = false;
    model_ = llama_model_load_from_file(options.model.c_str(), model_params);
    if (model_ == nullptr) Fail("cannot load " + options.model);
    llama_context_params params = llama_context_default_params();
    params.n_ctx = kContext;
    params.n_batch = params.n_ubatch = kTextTokens;
    params.n_threads = params.n_threads_batch = options.threads;
    params.type_k = params.type_v = options.cache_type;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    context_ = llama_init_from_model(model_, params);
    if (context_ == nullptr) Fail("cannot make a context");
    vocab_ = llama_model_get_vocab(model_);
    vocab_size_ = llama_vocab_n_tokens(vocab_);
    out_.write("OSLCREF1", 8);
    Put<uint32_t>(oscar::oracle::ProcessorFlags());
    Put<uint32_t>(vocab_size_);
  }

  std::vector<llama_token> Tokenize(const std::string& text, bool parse_special) const {
    std::vector<llama_token> tokens(text.size() + 8);
    const int n = llama_tokenize(vocab_, text.data(), static_cast<int>(text.size()), tokens.data(),
                                 static_cast<int>(tokens.size()), /*add_special=*/true, parse_special);
    if (n <= 0) Fail("cannot tokenize");
    tokens.resize(n);
    return tokens;
  }
  // A fixed sequence that needs no library: a 32-bit linear congruential generator (constants of Numerical Recipes).
  std::vector<llama_token> RandomTokens(int count) const {
    std::vector<llama_token> tokens;
    uint32_t state = 1;
    for (int i = 0; i < count; ++i) {
      state = state * 1664525u + 1013904223u;
      tokens.push_back(static_cast<llama_token>((state >> 8) % static_cast<uint32_t>(vocab_size_)));
    }
    return tokens;
  }

  void RecordGenerations(const std::vector<std::vector<llama_token>>& prompts) {
    Put<uint32_t>(prompts.size());
    for (const auto& prompt : prompts) {
      llama_memory_clear(llama_get_memory(context_), true);
      std::vector<llama_token> generated;
      std::vector<float> margins;
      std::vector<llama_token> next = prompt;
      for (int i = 0; i < kGenerated; ++i) {
        Decode(next, /*all_logits=*/false);
        const float* logits = llama_get_logits_ith(context_, -1);
        int best = 0, second = 1;
        for (int v = 1; v < vocab_size_; ++v) {
          if (logits[v] > logits[best]) { second = best; best = v; }
          else if (logits[v] > logits[second]) second = v;
        }
        generated.push_back(best);
        margins.push_back(logits[best] - logits[second]);
        next = {best};
      }
      PutTokens(prompt);
      PutTokens(generated);
      out_.write(reinterpret_cast<const char*>(margins.data()), static_cast<long>(margins.size() * sizeof(float)));
    }
  }

  void RecordLogits(const std::vector<llama_token>& tokens) {
    llama_memory_clear(llama_get_memory(context_), true);
    Decode(tokens, /*all_logits=*/true);
    PutTokens(tokens);
    const int top = std::min(kTop, vocab_size_);
    Put<uint32_t>(top);
    std::vector<int32_t> order(vocab_size_);
    for (int i = 0; i < static_cast<int>(tokens.size()); ++i) {
      const float* logits = llama_get_logits_ith(context_, i);
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + top, order.end(),
                        [&](int a, int b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
      const double maximum = logits[order[0]];
      double rest = 0;
      for (int j = top; j < vocab_size_; ++j) rest += std::exp(logits[order[j]] - maximum);
      for (int j = 0; j < top; ++j) Put<int32_t>(order[j]);
      for (int j = 0; j < top; ++j) Put<float>(logits[order[j]]);
      Put<float>(static_cast<float>(maximum + std::log(rest)));  // -inf when top is the whole vocabulary
    }
  }

  void Finish() {
    out_.flush();
    if (!out_) Fail("cannot write the record");
  }

 private:
  template <class T>
  void Put(T value) { out_.write(reinterpret_cast<const char*>(&value), sizeof(T)); }
  void PutTokens(const std::vector<llama_token>& tokens) {
    Put<uint32_t>(tokens.size());
    for (llama_token token : tokens) Put<int32_t>(token);
  }
  void Decode(const std::vector<llama_token>& tokens, bool all_logits) {
    llama_batch batch = llama_batch_init(static_cast<int>(tokens.size()), 0, 1);
    const llama_pos start = llama_memory_seq_pos_max(llama_get_memory(context_), 0) + 1;
    batch.n_tokens = static_cast<int>(tokens.size());
    for (int i = 0; i < batch.n_tokens; ++i) {
      batch.token[i] = tokens[i];
      batch.pos[i] = start + i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = all_logits || i + 1 == batch.n_tokens;
    }
    if (llama_decode(context_, batch) != 0) Fail("llama_decode failed");
    llama_batch_free(batch);
  }

  std::ofstream out_;
  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
  const llama_vocab* vocab_ = nullptr;
  int vocab_size_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Options options = ParseOptions(argc, argv);
  if (!options.widened.empty()) {
    const std::string error = oscar::oracle::WidenWeights(options.model, options.widened);
    if (!error.empty()) Fail(error);
    options.model = options.widened;
  }
  Recorder recorder(options);
  if (options.random_tokens > 0) {
    const std::vector<llama_token> tokens = recorder.RandomTokens(options.random_tokens);
    recorder.RecordGenerations({{tokens.begin(), tokens.begin() + std::min<long>(8, options.random_tokens)}});
    recorder.RecordLogits(tokens);
  } else {
    std::ifstream file(options.text, std::ios::binary);
    if (!file) Fail("cannot read " + options.text);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    std::vector<llama_token> tokens = recorder.Tokenize(text, /*parse_special=*/false);
    if (tokens.size() < kTextTokens) Fail("the text has only " + std::to_string(tokens.size()) + " tokens");
    tokens.resize(kTextTokens);
    std::vector<std::vector<llama_token>> prompts;
    for (const char* prompt : kPrompts) prompts.push_back(recorder.Tokenize(prompt, /*parse_special=*/true));
    recorder.RecordGenerations(prompts);
    recorder.RecordLogits(tokens);
  }
  recorder.Finish();
  return 0;
}
