#include "data/packed_images.h"

#include <fmt/format.h>

#include "data/transforms/chain.h"
#include "data/transforms/mixing.h"
#include "lockstep/error.h"

namespace lockstep::data {

pixels::PackedLayout packed_layout(const DataOptions& options, const ImageShape& image, bool training) {
  const char* const name = training ? "transforms" : "eval_transforms";
  const TransformList list = cut_at_mixing(training ? options.transforms : options.eval_transforms);
  try {
    const ChainTail before = TransformChain(list.before).tail(image);
    pixels::PackedLayout layout{.image = extent_of(image),
                                .steps = before.steps,
                                .mixes = list.mixing.has_value(),
                                .sums = before.sums};
    if (list.after.empty()) return layout;
    const TransformChain chain(list.after, list.place_after);
    chain.require_tail();
    const ChainTail after = chain.tail(image);
    layout.after = after.steps;
    layout.sums_after = after.sums;
    return layout;
  } catch (const ConfigError& error) {
    throw ConfigError(
        fmt::format("data.transforms_on is GPU, but in data.{}: {}, or set data.transforms_on: "
                    "CPU",
                    name, error.what()));
  }
}

}  // namespace lockstep::data
