#include "base/philox_stream.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/box_muller.h"

namespace lockstep {
namespace {

constexpr int64_t kCount = PhiloxBlocks::kCount;

// A word of several counters side by side, each in the low half of a lane. What the upper halves hold never
// matters, so that nothing need be cleared between rounds.
#if defined(__AVX512F__)
using Words [[gnu::vector_size(64)]] = uint64_t;
#else
using Words [[gnu::vector_size(32)]] = uint64_t;
#endif
constexpr int64_t kWordLanes = sizeof(Words) / sizeof(uint64_t);
static_assert(kCount % kWordLanes == 0);

/// The low half of each lane times `factor`. Processors have an instruction for it, which g++ 12 does not see
/// in the last line: without, this takes three times as long with AVX2. (No lane is masked; g++ 12 warns of
/// its own header if one asks for the product without a mask.)
[[gnu::always_inline]] inline Words product(Words words, uint32_t factor) {
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(
      _mm512_maskz_mul_epu32(0xFF, reinterpret_cast<__m512i>(words), _mm512_set1_epi64(factor)));
#elif defined(__AVX2__)
  return reinterpret_cast<Words>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(words), _mm256_set1_epi64x(factor)));
#else
  return (words & 0xFFFFFFFFu) * factor;
#endif
}

struct CounterLanes {
  Words word[4];
};

/// Philox::generate in every lane.
[[gnu::always_inline]] inline CounterLanes generate(CounterLanes counter, uint64_t seed) {
  auto k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const Words p0 = product(counter.word[0], 0xD2511F53u);
    const Words p1 = product(counter.word[2], 0xCD9E8D57u);
    counter = {{(p1 >> 32) ^ counter.word[1] ^ k0, p1, (p0 >> 32) ^ counter.word[3] ^ k1, p0}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

/// Normals, rounded to float, as they are computed here.
struct Normals {
  float value[kCount];
  /// 0 if the number is so far from the middle between two floats that an exact one rounds to the same,
  /// and philox_normal's as well.
  uint32_t doubt[kCount];
};

/// Whether there is doubt anywhere. A function of its own, for g++ to vectorise.
[[gnu::noinline]] bool compute_normals(const PhiloxBlocks& blocks, float scale, Normals& normals) {
  uint32_t doubt = 0;
  for (int64_t b = 0; b < kCount; ++b) {
    const double u = detail::unit_of_words(blocks.word[0][b], blocks.word[1][b]);
    const double radius = scale * std::sqrt(-2.0 * detail::logarithm(1.0 - u));
    const double turns = detail::unit_of_words(blocks.word[2][b], blocks.word[3][b]);
    const double normal = radius * detail::cosine_of_turns(turns);
    // This is within 2^-45 radii of the exact number, and so is philox_normal's, most of whose error is that
    // of 2 pi u before the cosine. The smallest part is for a scale of 0, which leaves signs.
    const double margin = std::fma(std::fabs(radius), 0x1p-42, 0x1p-1000);
    const auto low = static_cast<float>(normal - margin), high = static_cast<float>(normal + margin);
    normals.value[b] = low;
    normals.doubt[b] = std::bit_cast<uint32_t>(low) ^ std::bit_cast<uint32_t>(high);
    doubt |= normals.doubt[b];
  }
  return doubt != 0;
}

}  // namespace

void draw_blocks(const PhiloxStream& stream, uint64_t first, int64_t count, PhiloxBlocks& blocks) {
  for (int64_t b = 0; b < count; b += kWordLanes) {
    Words index;
    for (int64_t lane = 0; lane < kWordLanes; ++lane) index[lane] = first + static_cast<uint64_t>(b + lane);
    const Words number = Words{} + stream.number, purpose = Words{} + static_cast<uint32_t>(stream.purpose);
    const CounterLanes drawn = generate({{index, index >> 32, number, purpose}}, stream.seed);
    for (int word = 0; word < 4; ++word)
      for (int64_t lane = 0; lane < kWordLanes; ++lane)
        blocks.word[word][b + lane] = static_cast<uint32_t>(drawn.word[word][lane]);
  }
}

void draw_normals(const PhiloxStream& stream, uint64_t first, float scale, std::span<float> values) {
  PhiloxBlocks blocks;
  Normals normals;
  for (size_t done = 0; done < values.size(); done += kCount) {
    draw_blocks(stream, first + done, kCount, blocks);  // all, so that the loop over them has no remainder
    const bool doubt = compute_normals(blocks, scale, normals);
    const auto count = static_cast<int64_t>(std::min<size_t>(kCount, values.size() - done));
    float* piece = values.data() + done;
    std::copy_n(normals.value, count, piece);
    if (!doubt) continue;  // about one piece in a hundred goes on
    for (int64_t i = 0; i < count; ++i)
      if (normals.doubt[i] != 0)
        piece[i] = static_cast<float>(scale * philox_normal(stream.seed, stream.purpose, stream.number,
                                                            first + done + static_cast<uint64_t>(i)));
  }
}

void draw_uniforms(const PhiloxStream& stream, uint64_t first, float scale, std::span<float> values) {
  PhiloxBlocks blocks;
  for (size_t done = 0; done < values.size(); done += kCount) {
    const auto count = static_cast<int64_t>(std::min<size_t>(kCount, values.size() - done));
    draw_blocks(stream, first + done, count, blocks);
    float* piece = values.data() + done;
    for (int64_t i = 0; i < count; ++i)
      piece[i] =
          static_cast<float>(scale * (2 * detail::unit_of_words(blocks.word[0][i], blocks.word[1][i]) - 1));
  }
}

}  // namespace lockstep
