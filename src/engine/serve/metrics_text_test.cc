#include "src/engine/serve/metrics_text.h"

#include <gtest/gtest.h>

namespace oscar::engine {
namespace {

TEST(MetricsText, WritesFamiliesWithHelpTypeAndLabels) {
  MetricsText text(MetricsText::Labels{{"model_name", "a \"b\"\\\n"}});
  text.Gauge("oscar_x", "What x is.", 0.1);
  text.Family("oscar_y_total", "counter", "Ys.");
  text.Sample(3, {{"kind", "int2"}});
  EXPECT_EQ(text.text(),
            "# HELP oscar_x What x is.\n# TYPE oscar_x gauge\noscar_x{model_name=\"a \\\"b\\\"\\\\\\n\"} 0.1\n"
            "# HELP oscar_y_total Ys.\n# TYPE oscar_y_total counter\noscar_y_total{model_name=\"a \\\"b\\\"\\\\\\n\",kind=\"int2\"} 3\n");
}

TEST(MetricsText, BucketsAreCumulativeAndEndInInfinity) {
  Histogram histogram(1, 2, 3);
  for (const double value : {0.5, 1.0, 1.5, 4.0, 9.0}) histogram.Observe(value);
  MetricsText text(MetricsText::Labels{});
  text.AddHistogram("h", "H.", histogram);
  EXPECT_EQ(text.text(),
            "# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"2\"} 3\nh_bucket{le=\"4\"} 4\nh_bucket{le=\"+Inf\"} 5\n"
            "h_sum 16\nh_count 5\n");
}

TEST(Histogram, SecondsReachFromAMillisecondToHalfAnHour) {
  const Histogram seconds = Histogram::Seconds();
  EXPECT_EQ(seconds.bounds().front(), 0.001);
  EXPECT_NEAR(seconds.bounds().back(), 2097.152, 1e-9);
}

}  // namespace
}  // namespace oscar::engine
