// Engine: a model with its tokenizer, chat template and profile, and the caches that run over it. What every command opens.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/kv_cache.h"
#include "oscar/result.h"
#include "src/engine/models/model.h"
#include "src/engine/runtime/model_identity.h"
#include "src/engine/runtime/options.h"
#include "src/engine/text/chat/chat_template.h"
#include "src/engine/text/tokenizer.h"

namespace oscar::engine {

// First and newest tokens that a cache keeps in BF16, multiples of 64.
struct KvWindows {
  int sink = 0, recent = 0;
};

// A KV method with the profile it needs, checked against the model.
struct KvSetup {
  KvMethod method;
  CodecProfile profile;
  std::string warning;  // empty, or one line: the profile is from another quantisation of the model, for example
  std::optional<KvWindows> windows = {};  // empty: those of the engine's options
};

// Whether --encode-effort means something to the method.
bool TakesEncodeEffort(const KvSetup& setup);

class Engine {
 public:
  // Finds and maps the model, then checks method and profile; no weight is read before both fit. Errors name the file or
  // option; kFailedPrecondition with the command to run when a calibrated method has no profile.
  static Result<std::unique_ptr<Engine>> Open(const EngineOptions& options);
  // The same without a KV method: for calibration, and for evaluations that set up several methods.
  static Result<std::unique_ptr<Engine>> OpenModel(const EngineOptions& options);

  Model& model() { return *model_; }
  const Model& model() const { return *model_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }  // precondition: the load format is not kDummy
  const ChatTemplate* chat_template() const { return chat_template_ ? &*chat_template_ : nullptr; }  // null: none in the file
  // Tokens of a chat through the model's template, with `answer_start` behind them. Precondition: chat_template() is not null. Errors
  // of the template and the tokenizer.
  Result<std::vector<int32_t>> EncodeChat(const ChatRequest& chat, std::string_view answer_start = "") const;
  const ModelIdentity& identity() const { return identity_; }
  const std::filesystem::path& model_path() const { return model_path_; }
  const EngineOptions& options() const { return options_; }
  int context() const { return context_; }  // tokens, effective
  // Another context than that of the options, before caches are made. kInvalidArgument beyond what the model was trained for.
  Status UseContext(int tokens);
  int threads() const { return threads_; }
  const KvSetup* kv() const { return kv_ ? &*kv_ : nullptr; }  // null after OpenModel

  // Method and profile by name; `profile` empty: the file beside the model. Errors as Open.
  Result<KvSetup> SetUpKv(const std::string& kv, const std::filesystem::path& profile) const;
  KvWindows WindowsOf(const KvSetup& setup) const { return setup.windows.value_or(KvWindows{options_.sink, options_.recent}); }
  // A cache for `tokens` tokens of at most `sequences` sequences together, with the windows of the setup.
  Result<std::unique_ptr<KvCache>> NewCache(const KvSetup& setup, int64_t tokens, int sequences = 1);
  // The same with smaller steps, and with `prefix_pages` as KvCacheConfig has them.
  struct CacheSizes {
    int64_t tokens = 0;
    int sequences = 1;
    int step_tokens = kMaxStepTokens;
    int prefix_pages = 0;
  };
  Result<std::unique_ptr<KvCache>> NewCache(const KvSetup& setup, const CacheSizes& sizes);

 private:
  Engine() = default;
  Status LoadTokenizer();
  Status SetContext();

  EngineOptions options_;
  std::filesystem::path model_path_;
  ModelIdentity identity_;
  std::optional<KvSetup> kv_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_template_;
  int context_ = 0;
  int threads_ = 0;
};

// Cores this process may run on (affinity and cgroup quota).
int AvailableCores();

}  // namespace oscar::engine
