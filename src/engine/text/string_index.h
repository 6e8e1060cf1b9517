// StringIndex: from a text to its position in a list of texts. Sized once; the hash has a random
// key, so no file can be made whose texts collide.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace oscar::engine {

class StringIndex {
 public:
  // Room for `num_texts` texts. The texts live with the caller: `text_of(i)` below gives text
  // number i.
  explicit StringIndex(size_t num_texts);

  // The number of an equal text already here, or -1 after `number` was entered for `text`.
  template <class TextOf>
  int32_t Insert(std::string_view text, int32_t number, const TextOf& text_of) {
    size_t slot = Hash(text) & mask_;
    for (; slots_[slot] >= 0; slot = (slot + 1) & mask_) {
      if (text_of(slots_[slot]) == text) return slots_[slot];
    }
    slots_[slot] = number;
    return -1;
  }

  // The number of `text`, or -1.
  template <class TextOf>
  int32_t Find(std::string_view text, const TextOf& text_of) const {
    for (size_t slot = Hash(text) & mask_; slots_[slot] >= 0; slot = (slot + 1) & mask_) {
      if (text_of(slots_[slot]) == text) return slots_[slot];
    }
    return -1;
  }

 private:
  size_t Hash(std::string_view text) const;
  std::vector<int32_t> slots_;  // -1 where empty; at most half are taken
  size_t mask_ = 0;
  uint64_t key_ = 0;
};

}  // namespace oscar::engine
