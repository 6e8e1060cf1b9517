#include "src/engine/report/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "src/base/check.h"
#include "src/engine/report/quantity.h"

namespace oscar::engine {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kSampleSeconds = 0.25;
constexpr double kRateWindowSeconds = 10.0;
constexpr double kPlainSecondsWithoutTotal = 30.0;

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void WriteToStandardError(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

// Rounded down: 100 is said only when all is there. Precondition: total > 0.
uint64_t Percent(uint64_t done, uint64_t total) {
  if (done >= total) return 100;
  return std::min<uint64_t>(99, static_cast<uint64_t>(100.0 * static_cast<double>(done) / static_cast<double>(total)));
}

}  // namespace

ProgressStyle ProgressStyleOf(std::FILE* stream, bool quiet) {
  if (quiet) return ProgressStyle::kSilent;
  return isatty(fileno(stream)) == 1 ? ProgressStyle::kTerminal : ProgressStyle::kPlain;
}

Progress::Progress(ProgressOptions options) : options_(std::move(options)) {
  OSCAR_CHECK(options_.terminal_columns > 0);
  if (!options_.now_seconds) options_.now_seconds = SteadySeconds;
  if (!options_.write) options_.write = WriteToStandardError;
}

Progress::~Progress() {
  if (drawn_width_ > 0 && !is_finished_) options_.write(fmt::format("\r{:{}}\r", "", drawn_width_));
}

std::string Progress::AmountText(uint64_t amount) const {
  return options_.unit.empty() ? FormatBytes(static_cast<double>(amount)) : FormatCount(static_cast<int64_t>(amount));
}

std::string Progress::RateText(double per_second) const {
  if (options_.unit.empty()) return FormatBytesPerSecond(per_second);
  return FormatDecimal(per_second, per_second < 99.95 ? 1 : 0, options_.unit + "/s");
}

double Progress::RatePerSecond(double now) const {
  const Sample& oldest = samples_.front();
  if (now <= oldest.seconds || done_ < oldest.done) return 0.0;
  return static_cast<double>(done_ - oldest.done) / (now - oldest.seconds);
}

// "  42%  41.3 of 98.4 MiB ..." behind the label.
std::string Progress::StateText(double now) const {
  const double rate = RatePerSecond(now);
  const std::string unit = options_.unit.empty() ? "" : " " + options_.unit;
  std::string text = options_.label + ": ";
  if (total_ == 0) {
    text += fmt::format("{}{}", AmountText(done_), unit);
    return rate > 0 ? text + ", " + RateText(rate) : text;
  }
  text += fmt::format("{:3}%, {} of {}{}", Percent(done_, total_), AmountText(done_), AmountText(total_), unit);
  if (rate > 0) {
    const uint64_t remaining = total_ - std::min(done_, total_);
    text += fmt::format(", {}, ETA {}", RateText(rate), FormatDuration(static_cast<double>(remaining) / rate));
  }
  return text;
}

void Progress::DrawTerminal(std::string text, bool last) {
  const auto columns = static_cast<size_t>(options_.terminal_columns);
  if (text.size() > columns) text.resize(columns);
  const size_t width = text.size();
  if (width < drawn_width_) text.append(drawn_width_ - width, ' ');
  options_.write("\r" + text + (last ? "\n" : ""));
  drawn_width_ = width;
}

void Progress::Update(uint64_t done, uint64_t total) {
  OSCAR_CHECK(!is_finished_);
  const double now = options_.now_seconds();
  done_ = done;
  total_ = total;
  const bool first = !is_started_;
  if (first) {
    is_started_ = true;
    start_seconds_ = now;
    drawn_seconds_ = now;
    first_done_ = done;
  }
  const uint64_t tenth = total_ > 0 ? Percent(done_, total_) / 10 : 0;
  if (first || tenth < drawn_tenth_) drawn_tenth_ = tenth;
  if (!samples_.empty() && done_ < samples_.back().done) {  // the work started over
    samples_.clear();
    first_done_ = done_;
  }
  if (samples_.empty() || now - samples_.back().seconds >= kSampleSeconds) samples_.push_back({now, done_});
  while (samples_.size() > 2 && now - samples_.front().seconds > kRateWindowSeconds) samples_.pop_front();

  if (options_.style == ProgressStyle::kTerminal) {
    if (!first && now - drawn_seconds_ < kRedrawSeconds) return;
    DrawTerminal(StateText(now), /*last=*/false);
    drawn_seconds_ = now;
  } else if (options_.style == ProgressStyle::kPlain) {
    const bool due = total_ > 0 ? tenth > drawn_tenth_ : now - drawn_seconds_ >= kPlainSecondsWithoutTotal;
    if (!due) return;
    options_.write(StateText(now) + "\n");
    drawn_tenth_ = tenth;
    drawn_seconds_ = now;
  }
}

void Progress::Finish() {
  OSCAR_CHECK(!is_finished_);
  is_finished_ = true;
  if (options_.style == ProgressStyle::kSilent || !is_started_) return;
  const double seconds = options_.now_seconds() - start_seconds_;
  const std::string unit = options_.unit.empty() ? "" : " " + options_.unit;
  std::string text = fmt::format("{}: {}{} in {}", options_.label, AmountText(done_), unit, FormatDuration(seconds));
  if (seconds > 0) text += ", " + RateText(static_cast<double>(done_ - first_done_) / seconds);
  if (options_.style == ProgressStyle::kTerminal) {
    DrawTerminal(std::move(text), /*last=*/true);
  } else {
    options_.write(text + "\n");
  }
}

}  // namespace oscar::engine
