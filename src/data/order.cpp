#include "data/order.h"

#include <fmt/format.h>

#include <bit>

#include "base/philox.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

// Four rounds suffice for large halves (Luby and Rackoff, "How to construct pseudorandom permutations",
// 1988); the halves of small data sets have few bits, and more rounds mix them.
constexpr uint32_t kRounds = 8;

}  // namespace

SampleOrder::SampleOrder(uint64_t seed, int64_t dataset_size, Kind kind)
    : seed_(seed), size_(dataset_size), kind_(kind) {
  require(dataset_size > 0, fmt::format("sample order: expected at least 1 sample, found {}", dataset_size));
  const auto bits = static_cast<uint32_t>(std::bit_width(static_cast<uint64_t>(dataset_size) - 1));
  low_bits_ = (bits + 1) / 2;
  high_bits_ = bits / 2;
}

SampleOrder::SampleOrder(uint64_t seed, int64_t dataset_size, bool shuffle)
    : SampleOrder(seed, dataset_size, shuffle ? Kind::shuffled : Kind::in_order) {}

SampleOrder SampleOrder::once(int64_t dataset_size) { return SampleOrder(0, dataset_size, Kind::once); }

int64_t SampleOrder::sample(int64_t position) const {
  if (kind_ == Kind::once) return position < size_ ? position : kPadding;
  const int64_t epoch = position / size_, index = position % size_;
  if (kind_ == Kind::in_order) return index;
  // Cycle walking: the network permutes [0, 2^bits), so that following it from inside [0, size) must come
  // back inside, and does so in fewer than two steps on average.
  auto walked = static_cast<uint64_t>(index);
  do walked = permute(walked, static_cast<uint64_t>(epoch));
  while (walked >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(walked);
}

/// A Feistel network whose round function is Philox, over halves that may differ by one bit.
uint64_t SampleOrder::permute(uint64_t index, uint64_t epoch) const {
  const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1, high_mask = (uint64_t{1} << high_bits_) - 1;
  uint64_t low = index & low_mask, high = index >> low_bits_;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const bool from_high = round % 2 == 0;
    const auto half = static_cast<uint32_t>(from_high ? high : low);  // no half has more than 32 bits
    const Philox::Block counter{{half, static_cast<uint32_t>(epoch),
                                 static_cast<uint32_t>(epoch >> 32) << 8 | round,
                                 static_cast<uint32_t>(RandomPurpose::sample_order)}};
    const uint32_t mixed = Philox::generate(counter, seed_).word[0];
    if (from_high)
      low ^= mixed & low_mask;
    else
      high ^= mixed & high_mask;
  }
  return high << low_bits_ | low;
}

}  // namespace lockstep::data
