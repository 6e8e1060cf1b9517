// Progress of something long: a line that redraws itself on a terminal, a plain line each 10 % elsewhere, or nothing. The
// clock and the output are given, so nothing here waits or looks at the time by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace oscar::engine {

enum class ProgressStyle { kTerminal, kPlain, kSilent };

// kSilent when `quiet`; else kTerminal when the stream is a terminal, kPlain otherwise.
ProgressStyle ProgressStyleOf(std::FILE* stream, bool quiet);

struct ProgressOptions {
  std::string label;  // "SmolLM2-135M-Instruct.Q4_1.gguf"
  std::string unit;   // "tokens"; empty: bytes, shown as KiB, MiB, ...
  ProgressStyle style = ProgressStyle::kPlain;
  int terminal_columns = 79;                           // a longer line is cut, as it would wrap and never be overwritten
  std::function<double()> now_seconds;                 // any monotonic zero; empty: std::chrono::steady_clock
  std::function<void(std::string_view text)> write;    // empty: standard error, flushed
};

class Progress {
 public:
  explicit Progress(ProgressOptions options);
  // Erases an unfinished terminal line, so that an error message starts in a clean one.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of `total` (0: unknown). Rate and remaining time are those of the last ten seconds, so what was there before the
  // first call (a resumed download) does not count as speed. Cheap: draws at most ten times a second.
  void Update(uint64_t done, uint64_t total);
  // The last state with the whole time taken, and a line break. Once; Update must not follow.
  void Finish();

 private:
  struct Sample {
    double seconds;
    uint64_t done;
  };
  std::string StateText(double now) const;
  double RatePerSecond(double now) const;
  std::string AmountText(uint64_t amount) const;
  std::string RateText(double per_second) const;
  void DrawTerminal(std::string text, bool last);

  ProgressOptions options_;
  std::deque<Sample> samples_;
  uint64_t first_done_ = 0;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
  double start_seconds_ = 0.0;
  double drawn_seconds_ = 0.0;
  uint64_t drawn_tenth_ = 0;
  size_t drawn_width_ = 0;
  bool is_started_ = false;
  bool is_finished_ = false;
};

}  // namespace oscar::engine
