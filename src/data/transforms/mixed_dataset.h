#pragma once

#include <memory>
#include <optional>

#include "data/dataset.h"
#include "data/transforms/mixing.h"

namespace lockstep::data {

/// `base` with the image of each sample mixed with that of another one, and with the field "label_mix" for
/// its label. A partner with a share is read from `base`, in the same epoch. Without `mixing`, for
/// evaluation, labels are of one class. Throws ConfigError unless `base` has one field of shape [height,
/// width, channels], and a label of one number.
std::shared_ptr<const Dataset> mix_samples(std::shared_ptr<const Dataset> base,
                                           const std::optional<MixingOptions>& mixing);

}  // namespace lockstep::data
