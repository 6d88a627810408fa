#pragma once

#include <optional>

#include "data/transforms/image.h"
#include "data/transforms/sample_draws.h"

namespace lockstep::data {

/// A random part of an image: its share of the area is uniform, the logarithm of its aspect ratio (width /
/// height) too. Nothing if ten tries did not fit into the image. Uses draws 0 to 39.
std::optional<Region> draw_box(const SampleDraws& draws, const ImageShape& image, double area_min,
                               double area_max, double aspect_min, double aspect_max);

/// Throws ConfigError, which names `transform`, unless 0 < area_min <= area_max <= 1 and 0 < aspect_min <=
/// aspect_max.
void require_box_limits(const char* transform, double area_min, double area_max, double aspect_min,
                        double aspect_max);

}  // namespace lockstep::data
