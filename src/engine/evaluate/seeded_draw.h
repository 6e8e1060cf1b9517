// Random choices of generated evaluation items, the same on every machine for a seed.
#pragma once

#include <cstdint>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace oscar::engine {

// std::mt19937_64 gives the same numbers everywhere; the distributions of the standard library do not.
class SeededDraw {
 public:
  explicit SeededDraw(uint64_t seed) : rng_(seed) {}
  int Below(size_t limit) { return static_cast<int>(rng_() % limit); }
  double Unit() { return static_cast<double>(rng_() >> 11) * 0x1p-53; }
  std::string Digits(int count) {
    std::string digits(1, static_cast<char>('1' + Below(9)));
    while (static_cast<int>(digits.size()) < count) digits += static_cast<char>('0' + Below(10));
    return digits;
  }
  std::string Letters(int count, char first) {
    std::string letters;
    for (int i = 0; i < count; ++i) letters += static_cast<char>(first + Below(26));
    return letters;
  }
  std::string Uuid() {
    std::string text;
    for (const int length : {8, 4, 4, 4, 12}) {
      if (!text.empty()) text += '-';
      for (int i = 0; i < length; ++i) text += "0123456789abcdef"[Below(16)];
    }
    return text;
  }
  // Two words; there are 625 keys.
  std::string Key() {
    const std::string quality(kQualities[Below(std::size(kQualities))]);
    return quality + " " + std::string(kThings[Below(std::size(kThings))]);
  }
  // A value of `make` that was not given before. Precondition: there is one left.
  template <class Make>
  std::string New(const Make& make) {
    for (;;) {
      std::string text = make(*this);
      if (given_.insert(text).second) return text;
    }
  }
  template <class T>
  void Shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[Below(i)]);
  }

 private:
  static constexpr std::string_view kQualities[] = {
      "amber", "brave", "calm", "dusty", "early", "frozen", "gentle", "hollow", "iron", "jolly", "keen", "lunar",
      "misty", "noble", "odd", "proud", "quiet", "rapid", "silver", "tall", "upper", "vivid", "windy", "young",
      "zealous"};
  static constexpr std::string_view kThings[] = {
      "anchor", "bridge", "candle", "drum", "engine", "falcon", "garden", "harbor", "island", "jacket", "kettle",
      "ladder", "mirror", "needle", "orchard", "pillow", "quarry", "river", "saddle", "tunnel", "urn", "violin",
      "wagon", "yard", "zipper"};

  std::mt19937_64 rng_;
  std::set<std::string> given_;
};

}  // namespace oscar::engine
