#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/error.h"
#include "lockstep/model.h"

namespace lockstep::model {

// What presets are made of. Checks throw ConfigError, which names the preset and the option.

// Layer counts and widths beyond these are mistakes; below them no product made here overflows.
inline constexpr int64_t kMaximumLayers = 4096;
inline constexpr int64_t kMaximumWidth = int64_t{1} << 24;

inline void check_range(std::string_view preset, std::string_view option, int64_t value, int64_t least,
                        int64_t most) {
  if (value < least || value > most)
    throw ConfigError(
        fmt::format("{}: {} must be from {} to {}, but is {}", preset, option, least, most, value));
}

inline void check_rate(std::string_view preset, float rate) {
  if (!(rate >= 0 && rate < 1))
    throw ConfigError(fmt::format("{}: dropout must be at least 0 and below 1, but is {}", preset, rate));
}

inline void check_multiple(std::string_view preset, int64_t width, int64_t heads) {
  if (width % heads != 0)
    throw ConfigError(
        fmt::format("{}: width must be a multiple of heads, but is {} with {} heads; nearest are {} and {}",
                    preset, width, heads, width / heads * heads, (width / heads + 1) * heads));
}

/// An image of that size at the least.
inline void check_image(std::string_view preset, const Shape& image, int64_t least) {
  if (image.rank() != 3 || image[0] < least || image[1] < least)
    throw ConfigError(
        fmt::format("{}: image must be [height, width, channels] of at least {} x {}, but is {}", preset,
                    least, least, image.to_string()));
}

/// A model under construction that remembers its last value, for architectures that are mostly a chain.
class Chain {
 public:
  explicit Chain(ModelBuilder::Ref start) : last(std::move(start)) {}
  void then(ModelBuilder& builder, const std::string& name, Op op, std::vector<Tie> ties = {}) {
    last = builder.add(name, std::move(op), {last}, std::move(ties));
  }
  ModelBuilder::Ref last;
};

}  // namespace lockstep::model
