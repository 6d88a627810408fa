#include "train/worker/initialize.h"

#include <algorithm>
#include <span>

#include "base/ensure.h"
#include "base/hash.h"
#include "base/philox_stream.h"
#include "base/ranges.h"

namespace lockstep::train {
namespace {

/// About 0.2 ms of normals, beside which starting a thread (some 20 us) and taking a range are cheap.
constexpr int64_t kRange = 64 << 10;

/// Values of consecutive elements, from `first` on.
void write_values(const ops::Initializer& initializer, const PhiloxStream& stream, int64_t first,
                  std::span<float> values) {
  const auto [kind, scale] = initializer;
  switch (kind) {
    case ops::Initializer::Kind::zero:
      std::ranges::fill(values, 0.0f);
      break;
    case ops::Initializer::Kind::one:
      std::ranges::fill(values, 1.0f);
      break;
    case ops::Initializer::Kind::normal:
      draw_normals(stream, static_cast<uint64_t>(first), scale, values);
      break;
    case ops::Initializer::Kind::uniform:
      draw_uniforms(stream, static_cast<uint64_t>(first), scale, values);
      break;
  }
}

}  // namespace

void initialize_parameter(const model::Parameter& parameter, uint64_t seed, const tensor::Part& part,
                          std::span<float> values, int threads) {
  ensure(part.count() == std::ssize(values), "a part of a parameter needs memory of its size");
  const PhiloxStream stream{.seed = hash_combine(seed, hash64(parameter.name)),
                            .purpose = RandomPurpose::initialization};
  for_ranges(part.count(), kRange, threads, [&](int64_t begin, int64_t end) {
    // Row by row: elements of one are consecutive.
    for (int64_t at = begin; at < end;) {
      const int64_t next = std::min(end, (at / part.columns() + 1) * part.columns());
      write_values(parameter.spec.init, stream, part.element(at),
                   values.subspan(static_cast<size_t>(at), static_cast<size_t>(next - at)));
      at = next;
    }
  });
}

}  // namespace lockstep::train
