#include "train/initialize.h"

#include <algorithm>

#include "base/hash.h"
#include "base/philox.h"

namespace lockstep {

void initialize_parameter(const Parameter& parameter, uint64_t seed, float* values) {
  const int64_t count = parameter.spec.shape.count();
  const auto& initializer = parameter.spec.init;
  const uint64_t key = hash_combine(seed, hash64(parameter.name));
  switch (initializer.kind) {
    case Initializer::Kind::zero: std::fill_n(values, count, 0.0f); break;
    case Initializer::Kind::one: std::fill_n(values, count, 1.0f); break;
    case Initializer::Kind::normal:
      for (int64_t i = 0; i < count; ++i)
        values[i] = static_cast<float>(initializer.scale * philox_normal(key, RandomPurpose::initialization, 0, static_cast<uint64_t>(i)));
      break;
    case Initializer::Kind::uniform:
      for (int64_t i = 0; i < count; ++i)
        values[i] = static_cast<float>(initializer.scale *
                                       (2 * philox_uniform(key, RandomPurpose::initialization, 0, static_cast<uint64_t>(i)) - 1));
      break;
  }
}

}  // namespace lockstep
