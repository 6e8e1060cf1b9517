#include "src/engine/sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/engine/sample/philox.h"

namespace oscar::engine {
namespace {

Status CheckLogits(std::span<const float> logits) {
  bool any = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == INFINITY) {
      return {StatusCode::kNonFinite, "logit of token " + std::to_string(i) + " is " + std::to_string(logits[i])};
    }
    any = any || logits[i] != -INFINITY;
  }
  if (!any) return {StatusCode::kNonFinite, "no token has a finite logit"};
  return {};
}

}  // namespace

Result<Sampler> Sampler::Create(const SamplingParams& params, int vocab_size) {
  OSCAR_TRY(ValidateSamplingParams(params));
  OSCAR_CHECK(vocab_size > 0);
  for (const auto& [token, bias] : params.logit_bias) {
    if (token < 0 || token >= vocab_size) return Status(StatusCode::kInvalidArgument, "logit_bias: no token " + std::to_string(token));
  }
  Sampler sampler;
  sampler.params_ = params;
  sampler.vocab_size_ = vocab_size;
  if (params.seed) {
    sampler.seed_ = *params.seed;
  } else {
    std::random_device device;
    sampler.seed_ = (static_cast<uint64_t>(device()) << 32) | device();
  }
  sampler.logits_.resize(vocab_size);
  sampler.places_.resize(vocab_size);
  return sampler;
}

void Sampler::Accept(int32_t token, bool is_prompt) {
  OSCAR_CHECK(token >= 0 && token < vocab_size_);
  history_.push_back({token, is_prompt});
}

void Sampler::ApplyLimits(const TokenLimits& limits) {
  if (!limits.allowed.empty()) {
    for (size_t word = 0; 32 * word < logits_.size(); ++word) {
      const uint32_t bits = word < limits.allowed.size() ? limits.allowed[word] : 0;
      if (bits == ~uint32_t{0}) continue;
      const size_t end = std::min(logits_.size(), 32 * word + 32);
      for (size_t token = 32 * word; token < end; ++token) {
        if ((bits >> (token % 32) & 1) == 0) logits_[token] = -INFINITY;
      }
    }
  }
  for (const int32_t token : limits.forbidden) logits_[static_cast<size_t>(token)] = -INFINITY;
}

std::vector<LogitChange> Sampler::Changes() {
  std::vector<LogitChange> changes;
  const auto of = [&](int32_t token) -> LogitChange& {
    uint32_t& place = places_[static_cast<size_t>(token)];
    if (place == 0) {
      changes.push_back({token, 0, 0, 1});
      place = static_cast<uint32_t>(changes.size());
    }
    return changes[place - 1];
  };
  for (const auto& [token, bias] : params_.logit_bias) of(token).bias += bias;
  const bool repetition = params_.repetition_penalty != 1.0f;
  const bool additive = params_.presence_penalty != 0.0f || params_.frequency_penalty != 0.0f;
  if (repetition || additive) {
    const size_t window = params_.penalty_tokens > 0 ? std::min<size_t>(params_.penalty_tokens, history_.size()) : history_.size();
    for (const HistoryEntry& entry : std::span(history_).last(window)) {
      if (repetition) of(entry.token).repetition = params_.repetition_penalty;
      if (additive && !entry.is_prompt) ++of(entry.token).penalty;  // a count, until here
    }
    for (LogitChange& change : changes) {
      if (change.penalty > 0) change.penalty = params_.presence_penalty + params_.frequency_penalty * change.penalty;
    }
  }
  for (const LogitChange& change : changes) places_[static_cast<size_t>(change.token)] = 0;
  return changes;
}

TokenDraw Sampler::DrawAt(int64_t position) {
  return {params_.temperature, params_.top_k, params_.top_p, params_.min_p, UniformAt(seed_, params_.choice, static_cast<uint64_t>(position)),
          Changes()};
}

void Sampler::SelectCandidates() {
  candidates_.clear();
  best_ = *std::max_element(logits_.begin(), logits_.end());
  // Below e^-40 of the best one nothing can be drawn: 2^-53 is the smallest step of the draw.
  const float floor = best_ - 40.0f * std::max(params_.temperature, 1e-6f);
  for (int token = 0; token < vocab_size_; ++token) {
    if (logits_[token] >= floor) candidates_.push_back({logits_[token], token});
  }
  num_sorted_ = 0;
  if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < candidates_.size()) {
    SortTo(static_cast<size_t>(params_.top_k));
    candidates_.resize(static_cast<size_t>(params_.top_k));
    num_sorted_ = candidates_.size();
  }
}

double Sampler::Weight(const Candidate& candidate) const {
  const double difference = static_cast<double>(candidate.logit) - static_cast<double>(best_);
  return std::exp(difference / static_cast<double>(params_.temperature));
}

void Sampler::SortTo(size_t count) {
  if (count <= num_sorted_) return;
  const auto more_likely = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  // Mostly the first step is the last. The factor is large because each step reads all that is not sorted yet.
  const size_t end = std::min(candidates_.size(), std::max<size_t>({count, 64, 16 * num_sorted_}));
  const auto first = candidates_.begin() + static_cast<std::ptrdiff_t>(num_sorted_);
  const auto last = candidates_.begin() + static_cast<std::ptrdiff_t>(end);
  if (end < candidates_.size()) std::nth_element(first, last, candidates_.end(), more_likely);
  std::sort(first, last, more_likely);
  num_sorted_ = end;
}

int32_t Sampler::Draw(int64_t position) {
  double total = 0;
  for (const Candidate& candidate : candidates_) total += Weight(candidate);
  if (params_.top_p < 1.0f) {
    double sum = 0;
    size_t kept = 0;
    while (kept < candidates_.size() && sum < static_cast<double>(params_.top_p) * total) {
      SortTo(kept + 1);
      sum += Weight(candidates_[kept++]);
    }
    candidates_.resize(kept);
    num_sorted_ = kept;
    total = sum;
  }
  if (params_.min_p > 0.0f) {  // a share of the best token's probability, whose weight is 1
    const double least = static_cast<double>(params_.min_p);
    std::erase_if(candidates_, [&](const Candidate& candidate) { return Weight(candidate) < least; });
    num_sorted_ = std::min(num_sorted_, candidates_.size());  // what went was behind what stayed
    total = 0;
    for (const Candidate& candidate : candidates_) total += Weight(candidate);
  }
  double rest = UniformAt(seed_, params_.choice, static_cast<uint64_t>(position)) * total;
  for (size_t i = 0; i + 1 < candidates_.size(); ++i) {
    SortTo(i + 1);
    rest -= Weight(candidates_[i]);
    if (rest < 0) return candidates_[i].token;
  }
  SortTo(candidates_.size());
  return candidates_.back().token;
}

Result<int32_t> Sampler::Sample(std::span<const float> logits, int64_t position, const TokenLimits& limits) {
  if (logits.size() != static_cast<size_t>(vocab_size_)) {
    return {StatusCode::kInvalidArgument, std::to_string(logits.size()) + " logits for a vocabulary of " + std::to_string(vocab_size_)};
  }
  OSCAR_TRY(CheckLogits(logits));
  std::copy(logits.begin(), logits.end(), logits_.begin());
  ApplyLimits(limits);
  for (const LogitChange& change : Changes()) {
    float& logit = logits_[static_cast<size_t>(change.token)];
    logit = logit + change.bias - change.penalty;
    logit = logit > 0 ? logit / change.repetition : logit * change.repetition;
  }
  if (std::ranges::all_of(logits_, [](float logit) { return logit == -INFINITY; })) {
    return {StatusCode::kNonFinite, "no token that may come has a finite logit"};
  }
  if (params_.temperature == 0.0f || params_.top_k == 1) {
    return static_cast<int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
  }
  SelectCandidates();
  return Draw(position);
}

TokenScore ScoreToken(std::span<const float> logits, int32_t token, int n) {
  OSCAR_CHECK(token >= 0 && static_cast<size_t>(token) < logits.size());
  const float best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - best);
  const double log_sum = best + std::log(sum);
  const auto scored = [&](int32_t id) { return TokenProbability{id, logits[static_cast<size_t>(id)] - log_sum}; };
  const float own = logits[static_cast<size_t>(token)];
  TokenScore score{scored(token), 1 + static_cast<int>(std::ranges::count_if(logits, [own](float logit) { return logit > own; })), {}};
  const size_t count = std::min<size_t>(static_cast<size_t>(std::max(n, 0)), logits.size());
  if (count == 0) return score;
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (size_t i = 0; i < count; ++i) score.top.push_back(scored(ids[i]));
  return score;
}

}  // namespace oscar::engine
