#include "src/engine/serve/server_metrics.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "oscar/version.h"
#include "src/engine/serve/api_error.h"
#include "src/engine/serve/metrics_text.h"

namespace oscar::engine {
namespace {

using Labels = MetricsText::Labels;
using nlohmann::ordered_json;

double Real(auto value) { return static_cast<double>(value); }

// Bytes of a token in the encoded body and in BF16, all layers.
struct TokenBytes {
  double encoded = 0, bf16 = 0;
};
TokenBytes BytesPerToken(const SchedulerSnapshot& now) {
  const double bf16 = Real(now.kv.bf16_page_bytes) / kPageTokens;
  return {now.kv.encoded_page_bytes == 0 ? bf16 : Real(now.kv.encoded_page_bytes) / kPageTokens, bf16};
}

// The same tokens as BF16 rows, less what their pages take.
double SavedBytes(const SchedulerSnapshot& now) {
  return Real(now.kv.encoded_pages_used) * (Real(now.kv.bf16_page_bytes) - Real(now.kv.encoded_page_bytes));
}

double Ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

void AddRequests(MetricsText& text, const ServerMetrics& server, const SchedulerSnapshot& now, const SchedulerCounters& counters) {
  text.Gauge("oscar_requests_running", "Sequences that run.", now.running);
  text.Gauge("oscar_requests_waiting", "Sequences that have not begun.", now.waiting);
  text.Gauge("oscar_requests_preempted", "Sequences that began and left for lack of pages.", now.preempted);
  text.Family("oscar_requests_waiting_by_reason", "gauge", "Why they wait.");
  text.Sample(now.waiting_prefix, {{"reason", "prefix"}});
  text.Sample(std::max(0, now.waiting - now.waiting_prefix), {{"reason", "capacity"}});
  text.Counter("oscar_prompt_tokens_total", "Tokens of prompts, cached ones included.", Real(counters.prompt_tokens));
  text.Counter("oscar_generation_tokens_total", "Tokens sampled.", Real(counters.generated_tokens));
  text.Family("oscar_requests_total", "counter", "Sequences that ended.");
  text.Sample(Real(counters.finished_stop), {{"outcome", "stop"}});
  text.Sample(Real(counters.finished_length), {{"outcome", "length"}});
  text.Sample(Real(counters.cancelled_all()), {{"outcome", "abort"}});
  text.Sample(Real(counters.failed), {{"outcome", "error"}});
  text.Family("oscar_rejected_total", "counter", "Requests that were refused.");
  text.Sample(Real(counters.rejected_full), {{"reason", "queue_full"}});
  text.Sample(Real(counters.rejected_timeout), {{"reason", "queue_timeout"}});
  text.Sample(Real(server.refused_by_key), {{"reason", "key_limit"}});
  text.Family("oscar_cancelled_total", "counter", "Sequences whose client left, or that were aborted, by state.");
  constexpr const char* kStates[] = {"waiting", "prefill", "decode", "preempted"};
  for (int state = 0; state < kNumRequestStates; ++state) text.Sample(Real(counters.cancelled[static_cast<size_t>(state)]), {{"state", kStates[state]}});
  text.Family("oscar_preemptions_total", "counter", "Sequences that left the pools for a while.");
  text.Sample(Real(counters.preempted_swap), {{"mode", "swap"}});
  text.Sample(Real(counters.preempted_recompute), {{"mode", "recompute"}});
  text.Counter("oscar_itl_bound_violations_total", "Steps with answers that took longer than --max-itl-ms.", Real(counters.gap_violations));
}

void AddCache(MetricsText& text, const ServerMetrics& server, const SchedulerSnapshot& now, const SchedulerCounters& counters) {
  const TokenBytes bytes = BytesPerToken(now);
  text.Family("oscar_kv_tokens", "gauge", "Tokens of running sequences by segment.");
  text.Sample(now.segments.sink, {{"segment", "sink"}});
  text.Sample(now.segments.body, {{"segment", "history"}});
  text.Sample(now.segments.recent, {{"segment", "recent"}});
  text.Family("oscar_kv_bytes", "gauge", "Bytes of those tokens by segment; of windows that prefixes hold; of sequences in the host's memory.");
  text.Sample(now.segments.sink * bytes.bf16, {{"segment", "sink"}});
  text.Sample(now.segments.body * bytes.encoded, {{"segment", "history"}});
  text.Sample(now.segments.recent * bytes.bf16, {{"segment", "recent"}});
  text.Sample(now.prefixes.idle_bf16_pages * Real(now.kv.bf16_page_bytes), {{"segment", "resume_tail"}});
  text.Sample(Real(now.parked_bytes), {{"segment", "host"}});
  text.Family("oscar_kv_pages", "gauge", "Pages by kind and state: cached ones are held by prefixes alone.");
  const auto pages = [&](const char* kind, int total, int used, int cached) {
    text.Sample(total - used, {{"kind", kind}, {"state", "free"}});
    text.Sample(used - cached, {{"kind", kind}, {"state", "active"}});
    text.Sample(cached, {{"kind", kind}, {"state", "cached"}});
  };
  pages("int2", now.kv.encoded_pages_total, now.kv.encoded_pages_used, now.prefixes.idle_encoded_pages);
  pages("bf16", now.kv.bf16_pages_total, now.kv.bf16_pages_used, now.prefixes.idle_bf16_pages);
  text.Gauge("oscar_kv_capacity_bytes", "Bytes of the page pools.",
             Real(now.kv.bf16_page_bytes) * now.kv.bf16_pages_total + Real(now.kv.encoded_page_bytes) * now.kv.encoded_pages_total);
  text.Gauge("oscar_kv_usage_ratio", "Pages of running sequences over all pages, of the scarcer kind.", KvUsageRatio(now));
  text.Gauge("oscar_kv_saved_bytes", "What the encoded pages would take more as BF16.", SavedBytes(now));
  text.Counter("oscar_demoted_pages_total", "Pages that were encoded.", Real(now.kv.demoted_pages));
  const KvShape& shape = server.scheduler.cache().config().shape;
  text.Counter("oscar_quantised_rows_total", "Rows of keys and values in them.", Real(now.kv.demoted_pages) * kPageTokens * shape.num_layers * shape.num_kv_heads * 2);
  text.Counter("oscar_nonfinite_total", "Requests that ended with numbers that are not finite.", Real(counters.nonfinite));
  text.Counter("oscar_prefix_query_tokens_total", "Tokens of prompts that were looked up.", Real(counters.prompt_tokens));
  text.Counter("oscar_prefix_hit_tokens_total", "Tokens of prompts that were not computed again.", Real(counters.cached_tokens));
  text.Counter("oscar_prefix_unresumed_tokens_total", "Tokens that matched behind the last resume point.", Real(counters.unresumed_tokens));
  text.Counter("oscar_prefix_evicted_tokens_total", "Tokens whose pages prefixes gave up.", Real(now.prefixes.evicted_tokens));
  text.Gauge("oscar_prefix_resume_points", "Lengths at which known prompts can be continued.", now.prefixes.resume_points);
}

void AddTimes(MetricsText& text, const SchedulerCounters& counters) {
  text.AddHistogram("oscar_time_to_first_token_seconds", "From arrival to the first token.", counters.first_token);
  text.AddHistogram("oscar_inter_token_latency_seconds", "Between tokens of an answer.", counters.token_gap);
  text.AddHistogram("oscar_e2e_request_latency_seconds", "From arrival to the last token.", counters.whole);
  text.AddHistogram("oscar_request_queue_seconds", "From arrival to the first step.", counters.queue);
  text.AddHistogram("oscar_request_prefill_seconds", "From the first step to the first token.", counters.prefill);
  text.AddHistogram("oscar_request_decode_seconds", "From the first token to the last.", counters.decode);
  text.AddHistogram("oscar_request_prompt_tokens", "Sizes of prompts.", counters.prompt_sizes);
  text.AddHistogram("oscar_request_generation_tokens", "Sizes of answers.", counters.answer_sizes);
  text.AddHistogram("oscar_grammar_mask_seconds", "How long a draw waited for the tokens that its grammar allows.", counters.grammar_masks);
  text.AddHistogram("oscar_step_tokens", "Tokens of a step.", counters.step_tokens);
  text.Family("oscar_step_seconds", "histogram", "Times of steps, with parts of prompts or answers alone.");
  text.Samples(counters.prefill_steps, {{"phase", "prefill"}});
  text.Samples(counters.decode_steps, {{"phase", "decode"}});
}

void AddServer(MetricsText& text, const ServerMetrics& server, const SchedulerSnapshot& now) {
  text.Family("oscar_http_requests_total", "counter", "Answers by route, method and status.");
  for (const auto& [key, count] : server.http.counts()) {
    const auto& [route, method, status] = key;
    text.Sample(Real(count), {{"route", route}, {"method", method}, {"code", std::to_string(status)}});
  }
  text.Gauge("oscar_http_connections", "Open connections.", server.connections);
  text.Counter("oscar_auth_failures_total", "Requests with a missing or wrong key.", Real(server.auth_failures));
  text.Counter("oscar_tool_parse_failures_total", "Answers with text that begins as a tool call and is none.", Real(server.bad_calls));
  const KvEventPublisher* events = server.kv_events;
  text.Counter("oscar_kv_event_batches_total", "Batches of KV events that were published.", Real(events == nullptr ? 0 : events->num_batches()));
  text.Counter("oscar_kv_event_resyncs_total", "Times that KV events were lost and all pages were told again.", Real(events == nullptr ? 0 : events->num_resyncs()));
  text.Counter("oscar_log_lines_dropped_total", "Lines of the log that nobody read in time.", Real(server.log_lines_dropped));
  text.Gauge("oscar_step_age_seconds", "Since the last step began, or the loop last looked for work.", now.step_age_seconds);
  text.Gauge("oscar_ready", "1 when new requests are taken.", server.ready ? 1 : 0);
  text.Gauge("oscar_build_info", "1.", 1, {{"version", std::string(kVersion)}});
  const KvCacheConfig& config = server.scheduler.cache().config();
  text.Gauge("oscar_cache_config_info", "1.", 1,
             {{"page_tokens", std::to_string(kPageTokens)},
              {"num_pages", std::to_string(now.kv.bf16_pages_total + now.kv.encoded_pages_total)},
              {"codec", server.scheduler.method().name()},
              {"sink", std::to_string(config.sink)},
              {"recent", std::to_string(config.recent)}});
}

// Pages of the pool, as encoded pages where there are any.
double NumPages(const SchedulerSnapshot& now) {
  return now.kv.encoded_page_bytes == 0 ? now.kv.bf16_pages_total : Real(now.kv.encoded_pages_total);
}

// The names that routers and dashboards read.
void AddSglangAliases(MetricsText& text, const SchedulerSnapshot& now, const SchedulerCounters& counters) {
  text.Gauge("sglang:num_running_reqs", "As oscar_requests_running.", now.running);
  text.Gauge("sglang:num_queue_reqs", "As oscar_requests_waiting.", now.waiting);
  text.Gauge("sglang:token_usage", "As oscar_kv_usage_ratio.", KvUsageRatio(now));
  text.Gauge("sglang:cache_hit_rate", "oscar_prefix_hit_tokens_total over oscar_prefix_query_tokens_total.",
             Ratio(Real(counters.cached_tokens), Real(counters.prompt_tokens)));
  text.Counter("sglang:cached_tokens_total", "As oscar_prefix_hit_tokens_total.", Real(counters.cached_tokens));
  text.Counter("sglang:prompt_tokens_total", "As oscar_prompt_tokens_total.", Real(counters.prompt_tokens));
  text.Counter("sglang:generation_tokens_total", "As oscar_generation_tokens_total.", Real(counters.generated_tokens));
  text.Gauge("sglang:cache_config_info", "1.", 1,
             {{"page_size", std::to_string(kPageTokens)}, {"num_pages", std::to_string(static_cast<int64_t>(NumPages(now)))}});
}

void AddVllmAliases(MetricsText& text, const SchedulerSnapshot& now, const SchedulerCounters& counters) {
  text.Gauge("vllm:num_requests_running", "As oscar_requests_running.", now.running);
  text.Gauge("vllm:num_requests_waiting", "As oscar_requests_waiting.", now.waiting);
  text.Gauge("vllm:kv_cache_usage_perc", "As oscar_kv_usage_ratio.", KvUsageRatio(now));
  text.Gauge("vllm:cache_config_info", "1.", 1, {{"block_size", std::to_string(kPageTokens)}, {"num_gpu_blocks", std::to_string(static_cast<int64_t>(NumPages(now)))}});
  text.Counter("vllm:prefix_cache_queries_total", "As oscar_prefix_query_tokens_total.", Real(counters.prompt_tokens));
  text.Counter("vllm:prefix_cache_hits_total", "As oscar_prefix_hit_tokens_total.", Real(counters.cached_tokens));
  text.Counter("vllm:prompt_tokens_total", "As oscar_prompt_tokens_total.", Real(counters.prompt_tokens));
  text.Counter("vllm:prompt_tokens_cached_total", "As oscar_prefix_hit_tokens_total.", Real(counters.cached_tokens));
  text.Counter("vllm:generation_tokens_total", "As oscar_generation_tokens_total.", Real(counters.generated_tokens));
  text.Counter("vllm:num_preemptions_total", "As oscar_preemptions_total.", Real(counters.preempted_swap + counters.preempted_recompute));
  text.AddHistogram("vllm:time_to_first_token_seconds", "As oscar_time_to_first_token_seconds.", counters.first_token);
  text.AddHistogram("vllm:inter_token_latency_seconds", "As oscar_inter_token_latency_seconds.", counters.token_gap);
  text.AddHistogram("vllm:e2e_request_latency_seconds", "As oscar_e2e_request_latency_seconds.", counters.whole);
  text.AddHistogram("vllm:request_queue_time_seconds", "As oscar_request_queue_seconds.", counters.queue);
  text.AddHistogram("vllm:request_prefill_time_seconds", "As oscar_request_prefill_seconds.", counters.prefill);
  text.AddHistogram("vllm:request_decode_time_seconds", "As oscar_request_decode_seconds.", counters.decode);
  text.AddHistogram("vllm:request_prompt_tokens", "As oscar_request_prompt_tokens.", counters.prompt_sizes);
  text.AddHistogram("vllm:request_generation_tokens", "As oscar_request_generation_tokens.", counters.answer_sizes);
  text.Family("vllm:request_success_total", "counter", "As oscar_requests_total.");
  text.Sample(Real(counters.finished_stop), {{"finished_reason", "stop"}});
  text.Sample(Real(counters.finished_length), {{"finished_reason", "length"}});
  text.Sample(Real(counters.cancelled_all()), {{"finished_reason", "abort"}});
  text.Sample(Real(counters.failed), {{"finished_reason", "error"}});
}

std::string IsoTime() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace

void HttpCounts::Count(std::string_view route, std::string_view method, int status) {
  const std::lock_guard lock(mutex_);
  ++counts_[Key(route, method, status)];
}

std::map<HttpCounts::Key, uint64_t> HttpCounts::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::optional<MetricsAliases> AliasesNamed(std::string_view name) {
  if (name == "none") return MetricsAliases::kNone;
  if (name == "vllm") return MetricsAliases::kVllm;
  if (name == "sglang") return MetricsAliases::kSglang;
  if (name == "both") return MetricsAliases::kBoth;
  return std::nullopt;
}

double KvUsageRatio(const SchedulerSnapshot& now) {
  return std::max(Ratio(now.kv.bf16_pages_used - now.prefixes.idle_bf16_pages, now.kv.bf16_pages_total),
                  Ratio(now.kv.encoded_pages_used - now.prefixes.idle_encoded_pages, now.kv.encoded_pages_total));
}

std::string MetricsBody(const ServerMetrics& metrics, MetricsAliases aliases) {
  const SchedulerSnapshot now = metrics.scheduler.snapshot();
  const SchedulerCounters counters = metrics.scheduler.counters();
  MetricsText text({{"model_name", metrics.model_name}});
  AddRequests(text, metrics, now, counters);
  AddCache(text, metrics, now, counters);
  AddTimes(text, counters);
  AddServer(text, metrics, now);
  if (aliases == MetricsAliases::kNone) return text.text();
  MetricsText more({{"model_name", metrics.model_name}, {"engine", "0"}});
  if (aliases != MetricsAliases::kSglang) AddVllmAliases(more, now, counters);
  if (aliases != MetricsAliases::kVllm) AddSglangAliases(more, now, counters);
  return text.text() + more.text();
}

std::string LoadsBody(const Scheduler& scheduler) {
  const SchedulerSnapshot now = scheduler.snapshot();
  const SchedulerCounters counters = scheduler.counters();
  const double free_bytes = Real(now.kv.encoded_page_bytes) * (now.kv.encoded_pages_total - now.kv.encoded_pages_used + now.prefixes.idle_encoded_pages);
  const auto free_tokens = static_cast<int64_t>(free_bytes / BytesPerToken(now).encoded);
  ordered_json load = {{"dp_rank", 0},
                       {"num_running_reqs", now.running},
                       {"num_waiting_reqs", now.waiting},
                       {"num_waiting_uncached_tokens", now.waiting_tokens},
                       {"num_total_reqs", now.running + now.waiting + now.preempted},
                       {"num_used_tokens", now.used_tokens},
                       {"max_total_num_tokens", now.used_tokens + free_tokens},
                       {"token_usage", KvUsageRatio(now)},
                       {"gen_throughput", now.running > 0 ? now.decode_rate : 0.0},
                       {"cache_hit_rate", Ratio(Real(counters.cached_tokens), Real(counters.prompt_tokens))},
                       {"utilization", Ratio(now.running, scheduler.options().max_running)},
                       {"max_running_requests", scheduler.options().max_running}};
  return JsonText({{"timestamp", IsoTime()}, {"version", kVersion}, {"dp_rank_count", 1}, {"loads", ordered_json::array({std::move(load)})}});
}

std::string CacheBody(const Scheduler& scheduler) {
  const SchedulerSnapshot now = scheduler.snapshot();
  const SchedulerCounters counters = scheduler.counters();
  const TokenBytes bytes = BytesPerToken(now);
  const auto segment = [](double tokens, double total) {
    return ordered_json{{"tokens", static_cast<int64_t>(tokens)}, {"bytes", static_cast<int64_t>(total)}};
  };
  const double tail_bytes = now.prefixes.idle_bf16_pages * Real(now.kv.bf16_page_bytes);
  ordered_json segments = {{"sink", segment(now.segments.sink, now.segments.sink * bytes.bf16)},
                           {"history", segment(now.segments.body, now.segments.body * bytes.encoded)},
                           {"recent", segment(now.segments.recent, now.segments.recent * bytes.bf16)},
                           {"resume_tails", segment(tail_bytes / bytes.bf16, tail_bytes)}};
  return JsonText({{"segments", std::move(segments)},
                   {"pages",
                    {{"bf16", {{"total", now.kv.bf16_pages_total}, {"used", now.kv.bf16_pages_used}, {"cached", now.prefixes.idle_bf16_pages}}},
                     {"int2", {{"total", now.kv.encoded_pages_total}, {"used", now.kv.encoded_pages_used}, {"cached", now.prefixes.idle_encoded_pages}}}}},
                   {"saved_bytes", static_cast<int64_t>(SavedBytes(now))},
                   {"cached_tokens", now.prefixes.tokens},
                   {"resume_points", now.prefixes.resume_points},
                   {"hit_tokens", counters.cached_tokens},
                   {"query_tokens", counters.prompt_tokens}});
}

}  // namespace oscar::engine
