#include "src/engine/serve/request_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

namespace oscar::engine {
namespace {

RequestRecord Generated() {
  RequestRecord record{.id = "abc", .tenant = "shop", .method = "POST", .route = "/v1/completions", .status = 200, .seconds = 1.25};
  record.generated = true;
  record.choices = 1;
  record.prompt_tokens = 100;
  record.cached_tokens = 64;
  record.completion_tokens = 7;
  record.finish = "length";
  record.timings.first_token_seconds = 0.5;
  record.timings.gap_p50_seconds = 0.0125;
  return record;
}

TEST(RequestLog, ALineTellsTokensTimesAndStatus) {
  EXPECT_EQ(RecordText(Generated(), LogFormat::kText),
            "abc POST /v1/completions 200 1250 ms tenant=shop prompt=100 cached=64 out=7 finish=length queue=0ms ttft=500ms itl_p50=12.5ms\n");
  const auto line = nlohmann::json::parse(RecordText(Generated(), LogFormat::kJson));
  EXPECT_EQ(line["cached_tokens"], 64);
  EXPECT_EQ(line["ttft_ms"], 500);
  EXPECT_EQ(line["status"], 200);
}

class SilentResponder final : public HttpResponder {
 public:
  void Send(int, HttpFields, std::string) override {}
  void Begin(int, HttpFields) override {}
  void Write(std::string) override {}
  void End() override {}
  void OnClosed(std::function<void()> closed) override { closed_ = std::move(closed); }
  std::function<void()> closed_;
};

TEST(RequestLog, AnswersAreCountedOnceAndAClientThatLeftIs499) {
  const auto observer = std::make_shared<RequestObserver>(LogFormat::kNone, STDERR_FILENO);
  const auto inner = std::make_shared<SilentResponder>();
  {
    ObservedResponder answered(inner, observer, {.method = "GET", .route = "/health"}, false);
    answered.Send(200, {}, "");
  }
  {
    ObservedResponder left(inner, observer, {.method = "POST", .route = "/v1/completions"}, false);
    bool told = false;
    left.OnClosed([&] { told = true; });
    inner->closed_();
    EXPECT_TRUE(told);
  }
  const std::map<HttpCounts::Key, uint64_t> expected = {{{"/health", "GET", 200}, 1}, {{"/v1/completions", "POST", 499}, 1}};
  EXPECT_EQ(observer->counts.counts(), expected);
}

}  // namespace
}  // namespace oscar::engine
