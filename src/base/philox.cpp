#include "base/philox.h"

#include <cmath>
#include <numbers>

namespace lockstep {
namespace {

Philox::Block block_at(uint64_t seed, RandomPurpose purpose, uint32_t stream, uint64_t index) {
  const Philox::Block counter{{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), stream,
                               static_cast<uint32_t>(purpose)}};
  return Philox::generate(counter, seed);
}

double unit(uint32_t high, uint32_t low) {  // [0, 1), 53 random bits
  return static_cast<double>((uint64_t{high} << 21) ^ (low >> 11)) * 0x1p-53;
}

}  // namespace

double philox_uniform(uint64_t seed, RandomPurpose purpose, uint32_t stream, uint64_t index) {
  const auto block = block_at(seed, purpose, stream, index);
  return unit(block.word[0], block.word[1]);
}

double philox_normal(uint64_t seed, RandomPurpose purpose, uint32_t stream, uint64_t index) {
  const auto block = block_at(seed, purpose, stream, index);
  const double radius = std::sqrt(-2.0 * std::log(1.0 - unit(block.word[0], block.word[1])));
  return radius * std::cos(2.0 * std::numbers::pi * unit(block.word[2], block.word[3]));
}

}  // namespace lockstep
