#include "tokenizer/merges.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "base/ensure.h"

namespace lockstep::tokenizer {
namespace {

uint64_t key_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

/// Fibonacci hashing: the product's upper bits depend on all of the key.
size_t place_of(uint64_t key, int shift) { return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> shift); }

constexpr uint64_t kEmpty = UINT64_MAX;
// Searching all pairs again for each merge is faster than a queue up to about this length.
constexpr size_t kShort = 48;

}  // namespace

MergeTable::MergeTable(std::vector<Merge> merges) : merges_(std::move(merges)) {
  if (merges_.empty()) return;
  const size_t slots = std::bit_ceil(2 * merges_.size());
  shift_ = 64 - std::countr_zero(slots);
  slots_.assign(slots, {kEmpty, kNone});
  for (size_t rank = 0; rank < merges_.size(); ++rank) {
    const uint64_t key = key_of(merges_[rank].left, merges_[rank].right);
    size_t place = place_of(key, shift_);
    for (; slots_[place].pair != kEmpty; place = (place + 1) & (slots - 1))
      ensure(slots_[place].pair != key, "a pair is merged twice");
    slots_[place] = {key, static_cast<uint32_t>(rank)};
  }
}

uint32_t MergeTable::rank_of(int32_t left, int32_t right) const {
  const uint64_t key = key_of(left, right);
  for (size_t place = place_of(key, shift_);; place = (place + 1) & (slots_.size() - 1)) {
    if (slots_[place].pair == key) return slots_[place].rank;
    if (slots_[place].pair == kEmpty) return kNone;
  }
}

void MergeTable::apply(std::vector<int32_t>& word) const {
  if (merges_.empty() || word.size() < 2) return;
  if (word.size() <= kShort)
    apply_to_short(word);
  else
    apply_to_long(word);
}

void MergeTable::apply_to_short(std::vector<int32_t>& word) const {
  uint32_t ranks[kShort];  // of each token and the next
  size_t pairs = word.size() - 1;
  for (size_t i = 0; i < pairs; ++i) ranks[i] = rank_of(word[i], word[i + 1]);
  while (pairs > 0) {
    const size_t at = static_cast<size_t>(std::min_element(ranks, ranks + pairs) - ranks);
    if (ranks[at] == kNone) break;
    word[at] = merges_[ranks[at]].merged;
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    std::copy(ranks + at + 1, ranks + pairs, ranks + at);
    --pairs;
    if (at > 0) ranks[at - 1] = rank_of(word[at - 1], word[at]);
    if (at < pairs) ranks[at] = rank_of(word[at], word[at + 1]);
  }
}

/// Tokens as a list of places, and a queue of pairs, of which those that have changed since are passed over:
/// n log n for a word of n bytes.
void MergeTable::apply_to_long(std::vector<int32_t>& word) const {
  struct Candidate {
    uint32_t rank, place;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };
  const auto size = static_cast<uint32_t>(word.size());
  ensure(word.size() < kNone, "a word is too long");
  std::vector<uint32_t> next(size), previous(size);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](uint32_t place) {
    const uint32_t rank = rank_of(word[place], word[next[place]]);
    if (rank != kNone) queue.push({rank, place});
  };
  for (uint32_t i = 0; i < size; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
  }
  for (uint32_t i = 0; i + 1 < size; ++i) offer(i);
  while (!queue.empty()) {
    const auto [rank, place] = queue.top();
    queue.pop();
    const Merge& merge = merges_[rank];
    // A place that was merged into another has -1, which no merge has.
    if (word[place] != merge.left || next[place] == size || word[next[place]] != merge.right) continue;
    const uint32_t gone = next[place];
    word[place] = merge.merged;
    word[gone] = -1;
    next[place] = next[gone];
    if (next[place] != size) {
      previous[next[place]] = place;
      offer(place);
    }
    if (place > 0) offer(previous[place]);
  }
  std::erase(word, -1);
}

}  // namespace lockstep::tokenizer
