#include "data/transforms/random_box.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/error.h"

namespace lockstep::data {

std::optional<Region> draw_box(const SampleDraws& draws, const ImageShape& image, double area_min,
                               double area_max, double aspect_min, double aspect_max) {
  constexpr uint32_t kTries = 10;
  const double low = std::log(aspect_min), high = std::log(aspect_max);
  for (uint32_t attempt = 0; attempt < kTries; ++attempt) {
    const uint32_t first = 4 * attempt;
    const double area = static_cast<double>(image.pixels()) * draws.uniform(first, area_min, area_max);
    const double aspect = std::exp(draws.uniform(first + 1, low, high));
    const auto width = static_cast<int64_t>(std::llround(std::sqrt(area * aspect)));
    const auto height = static_cast<int64_t>(std::llround(std::sqrt(area / aspect)));
    if (height < 1 || width < 1 || height > image.height || width > image.width) continue;
    return Region{draws.below(first + 2, image.height - height + 1),
                  draws.below(first + 3, image.width - width + 1), height, width};
  }
  return {};
}

void require_box_limits(const char* transform, double area_min, double area_max, double aspect_min,
                        double aspect_max) {
  require(area_min > 0 && area_min <= area_max && area_max <= 1,
          fmt::format("{}: expected 0 < area_min <= area_max <= 1, found {} and {}", transform, area_min,
                      area_max));
  require(aspect_min > 0 && aspect_min <= aspect_max && std::isfinite(aspect_max),
          fmt::format("{}: expected 0 < aspect_min <= aspect_max, found {} and {}", transform, aspect_min,
                      aspect_max));
}

}  // namespace lockstep::data
