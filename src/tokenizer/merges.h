#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace lockstep::tokenizer {

/// Two neighbouring tokens that become one.
struct Merge {
  int32_t left = 0, right = 0, merged = 0;
  bool operator==(const Merge&) const = default;
};

/// The merges of byte-pair encoding, in their order: of all pairs in a word, the first in this order is
/// merged first, at its leftmost place. Immutable; thread-safe.
class MergeTable {
 public:
  MergeTable() = default;
  /// REQUIRES: no pair is merged twice; tokens are at least 0.
  explicit MergeTable(std::vector<Merge> merges);

  std::span<const Merge> merges() const { return merges_; }
  /// Merges until no pair is in the table. `word` holds a token for each byte, and gets shorter.
  void apply(std::vector<int32_t>& word) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Slot {
    uint64_t pair;
    uint32_t rank;
  };
  uint32_t rank_of(int32_t left, int32_t right) const;
  void apply_to_short(std::vector<int32_t>& word) const;
  void apply_to_long(std::vector<int32_t>& word) const;

  std::vector<Merge> merges_;
  std::vector<Slot> slots_;  // open addressing; a power of two, at most half full
  int shift_ = 0;
};

}  // namespace lockstep::tokenizer
