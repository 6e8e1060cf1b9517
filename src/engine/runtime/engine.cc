#include "src/engine/runtime/engine.h"

#include <sched.h>

#include <algorithm>
#include <fstream>

#include "src/base/status_macros.h"
#include "src/engine/hub/model_cache.h"

namespace oscar::engine {
namespace {

Status CheckOptions(const EngineOptions& options) {
  const auto invalid = [](std::string text) { return Status(StatusCode::kInvalidArgument, std::move(text)); };
  if (options.model.empty()) return invalid("no model: give one with -m (a .gguf file, or a name in the model cache)");
  if (options.sink < 0 || options.sink % kPageTokens != 0) {
    return invalid("--sink " + std::to_string(options.sink) + ": must be 0 or a multiple of 64");
  }
  if (options.recent < 0 || options.recent % kPageTokens != 0) {
    return invalid("--recent " + std::to_string(options.recent) + ": must be 0 or a multiple of 64");
  }
  if (options.context < 0) return invalid("--ctx " + std::to_string(options.context) + ": must be 0 (the default) or positive");
  if (options.encode_effort && (*options.encode_effort < 0 || *options.encode_effort > kMaxEncodeEffort)) {
    return invalid("--encode-effort " + std::to_string(*options.encode_effort) + ": must be 0, 1 or 2");
  }
  if (options.weights == WeightPrecision::kF32 && options.device != Device::kCpu) {
    return invalid("--weights f32: for --device cpu only; a GPU computes with weights widened to BF16");
  }
  if (options.weights == WeightPrecision::kFp8 && options.device != Device::kCuda) return invalid("--weights fp8: for --device cuda only");
  if (options.weights == WeightPrecision::kFp8 && options.deterministic) {
    return invalid("--weights fp8: not with --deterministic, its products depend on the batch");
  }
  if (options.threads < 0 || options.threads > 1024) {
    return invalid("--threads " + std::to_string(options.threads) + ": must be 0 (the default) or between 1 and 1024");
  }
  return {};
}

}  // namespace

int AvailableCores() {
  cpu_set_t set;
  int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  // A container's quota: more runnable threads than that makes ggml's spinning barriers wait for scheduler ticks.
  std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (quota_file >> quota >> period && period > 0) cores = std::min(cores, static_cast<int>(quota / period));
  return std::max(1, cores);
}

Result<std::unique_ptr<Engine>> Engine::OpenModel(const EngineOptions& options) {
  OSCAR_TRY(CheckOptions(options));
  std::unique_ptr<Engine> engine(new Engine);
  engine->options_ = options;
  engine->threads_ = options.threads > 0 ? options.threads : AvailableCores();
  if (options.load_format == LoadFormat::kDummy) {
    OSCAR_ASSIGN_OR_RETURN(engine->model_, Model::LoadRandom(options.model, engine->threads_, options.device,
                                                              options.deterministic ? BatchRounding::kInvariant : BatchRounding::kFree, options.weights));
    engine->identity_.name = engine->model_->config().name;
    OSCAR_TRY(engine->SetContext());
    return engine;
  }
  OSCAR_ASSIGN_OR_RETURN(engine->model_path_, ModelCache().Resolve(options.model));
  const std::filesystem::path& path = engine->model_path_;
  OSCAR_ASSIGN_OR_RETURN(io::GgufFile file, io::GgufFile::Open(path));
  auto identity = IdentifyModel(file, path.stem().string());
  if (!identity.ok()) return identity.status().WithContext(path.string());
  engine->identity_ = *std::move(identity);
  auto model = Model::Load(std::move(file), engine->threads_, options.device, options.weights,
                           options.deterministic ? BatchRounding::kInvariant : BatchRounding::kFree);
  if (!model.ok()) return model.status().WithContext(path.string());
  engine->model_ = *std::move(model);
  OSCAR_TRY(engine->LoadTokenizer().WithContext(path.string()));
  OSCAR_TRY(engine->SetContext());
  return engine;
}

Status Engine::SetContext() {
  const int trained = model_->config().max_context;
  if (options_.context > trained) {
    return {StatusCode::kInvalidArgument, "--ctx " + std::to_string(options_.context) + ": " + model_path_.filename().string() +
                                              " was trained for " + std::to_string(trained) + " tokens"};
  }
  context_ = options_.context > 0 ? options_.context : std::min(kDefaultContext, trained);
  return {};
}

Status Engine::UseContext(int tokens) {
  options_.context = tokens;
  return SetContext();
}

Result<std::unique_ptr<Engine>> Engine::Open(const EngineOptions& options) {
  OSCAR_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, OpenModel(options));
  OSCAR_ASSIGN_OR_RETURN(engine->kv_, engine->SetUpKv(options.kv, options.profile));
  if (options.encode_effort && !TakesEncodeEffort(*engine->kv_)) {
    return {StatusCode::kInvalidArgument, "--encode-effort: " + engine->kv_->method.name() + " has no error feedback"};
  }
  return engine;
}

Status Engine::LoadTokenizer() {
  const io::GgufMetadata& metadata = model_->metadata();
  OSCAR_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Create(metadata));
  if (tokenizer_->vocab_size() > model_->config().vocab_size) {
    return {StatusCode::kCorruptData, "tokenizer.ggml.tokens has " + std::to_string(tokenizer_->vocab_size()) +
                                          " tokens, the output layer only " + std::to_string(model_->config().vocab_size)};
  }
  OSCAR_ASSIGN_OR_RETURN(const std::string source, metadata.StringOr("tokenizer.chat_template", ""));
  if (source.empty()) return {};
  const auto text_of = [this](int32_t id) { return id < 0 ? std::string() : tokenizer_->TokenBytes(id, true); };
  auto chat_template = ChatTemplate::Create(source, text_of(tokenizer_->bos_id()), text_of(tokenizer_->eos_id()));
  if (!chat_template.ok()) return chat_template.status().WithContext("tokenizer.chat_template");
  chat_template_ = *std::move(chat_template);
  return {};
}

bool TakesEncodeEffort(const KvSetup& setup) { return setup.profile.row(0, 0, KvSide::kKey).encoder == EncoderKind::kErrorFeedback; }

Result<std::vector<int32_t>> Engine::EncodeChat(const ChatRequest& chat, std::string_view answer_start) const {
  OSCAR_ASSIGN_OR_RETURN(std::string prompt, chat_template_->Render(chat));
  return tokenizer_->Encode(prompt.append(answer_start), {.add_special = false, .parse_special = true});
}

Result<KvSetup> Engine::SetUpKv(const std::string& kv, const std::filesystem::path& profile_path) const {
  OSCAR_ASSIGN_OR_RETURN(const KvMethod method, ParseKvMethod(kv));
  const KvShape& shape = model_->config().kv;
  auto data_free = DataFreeProfile(method.name(), shape, model_->rotary());
  if (data_free.ok()) {
    if (!profile_path.empty()) {
      return {StatusCode::kInvalidArgument, "--profile " + profile_path.string() + ": " + method.name() + " takes no profile"};
    }
    return KvSetup{method, *std::move(data_free), "", {}};
  }
  if (data_free.status().code() != StatusCode::kFailedPrecondition) return data_free.status();
  const bool is_default = profile_path.empty();
  const auto path = is_default ? ModelCache::ProfilePath(model_path_, method.name()) : profile_path;
  if (is_default && !std::filesystem::exists(path)) {
    return {StatusCode::kFailedPrecondition, method.name() + " needs a calibrated profile and there is none at " + path.string() +
                                                 "; make it with: oscar calibrate -m " + options_.model + " --kv " + method.name()};
  }
  OSCAR_ASSIGN_OR_RETURN(CodecProfile profile, CodecProfile::Load(path));
  if (profile.method() != method.name()) {
    return {StatusCode::kFailedPrecondition, path.string() + ": made for " + profile.method() + ", not for " + method.name()};
  }
  std::string warning;
  OSCAR_TRY(CheckProfileFits(profile, {shape, identity_.fingerprint, identity_.identity, model_->rotary()}, &warning).WithContext(path.string()));
  if (!warning.empty()) warning = path.string() + ": " + warning;
  KvSetup setup{method, std::move(profile), std::move(warning), {}};
  if (options_.encode_effort && TakesEncodeEffort(setup)) OSCAR_TRY(setup.profile.SetEncodeEffort(*options_.encode_effort));
  return setup;
}

Result<std::unique_ptr<KvCache>> Engine::NewCache(const KvSetup& setup, int64_t tokens, int sequences) {
  return NewCache(setup, CacheSizes{tokens, sequences, kMaxStepTokens, 0});
}

Result<std::unique_ptr<KvCache>> Engine::NewCache(const KvSetup& setup, const CacheSizes& sizes) {
  KvCacheConfig config;
  config.shape = model_->config().kv;
  const KvWindows windows = WindowsOf(setup);
  config.sink = windows.sink;
  config.recent = windows.recent;
  config.max_tokens = sizes.tokens;
  config.max_sequences = sizes.sequences;
  config.max_step_tokens = static_cast<int>(std::min<int64_t>(sizes.step_tokens, sizes.tokens));
  config.prefix_pages = sizes.prefix_pages;
  config.batch_invariant = options_.deterministic;
  return model_->NewCache(setup.method, setup.profile, config);
}

}  // namespace oscar::engine
