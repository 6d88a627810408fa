#include "train/worker/initialize.h"

#include <algorithm>
#include <span>

#include "base/hash.h"
#include "base/philox_stream.h"
#include "base/ranges.h"

namespace lockstep::train {
namespace {

/// About 0.2 ms of normals, beside which starting a thread (some 20 us) and taking a range are cheap.
constexpr int64_t kRange = 64 << 10;

}  // namespace

void initialize_parameter(const model::Parameter& parameter, uint64_t seed, int64_t first,
                          std::span<float> values, int threads) {
  const auto [kind, scale] = parameter.spec.init;
  const PhiloxStream stream{.seed = hash_combine(seed, hash64(parameter.name)),
                            .purpose = RandomPurpose::initialization};
  for_ranges(static_cast<int64_t>(values.size()), kRange, threads, [&](int64_t begin, int64_t end) {
    const auto range = values.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    const auto from = static_cast<uint64_t>(first + begin);
    switch (kind) {
      case ops::Initializer::Kind::zero:
        std::ranges::fill(range, 0.0f);
        break;
      case ops::Initializer::Kind::one:
        std::ranges::fill(range, 1.0f);
        break;
      case ops::Initializer::Kind::normal:
        draw_normals(stream, from, scale, range);
        break;
      case ops::Initializer::Kind::uniform:
        draw_uniforms(stream, from, scale, range);
        break;
    }
  });
}

}  // namespace lockstep::train
