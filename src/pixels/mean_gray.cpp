#include "pixels/mean_gray.h"

#include <array>

#include "pixels/formulas.h"

namespace lockstep::pixels {

float mean_gray(const Extent& extent, const float* pixels) {
  std::array<double, kGrayParts> parts{};
  const int64_t count = extent.pixels();
  for (int64_t first = 0; first < count; first += kGrayParts) {
    const int64_t end = count - first < kGrayParts ? count - first : kGrayParts;
    for (int64_t i = 0; i < end; ++i)
      parts[static_cast<size_t>(i)] += gray_term(pixels + (first + i) * extent.channels, extent.channels);
  }
  for (size_t half = kGrayParts / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) parts[i] += parts[i + half];
  return static_cast<float>(parts[0] / static_cast<double>(count));
}

}  // namespace lockstep::pixels
