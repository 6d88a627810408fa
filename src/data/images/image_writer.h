#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/transforms/image.h"

namespace lockstep::data {

struct JpegOptions {
  int quality = 90;        ///< 1 to 100
  bool subsampled = true;  ///< colors at half of the size in both directions
  bool progressive = false;
};

// An image of bytes, of 1 channel (gray) or 3 (red, green, blue), as a file. The same bytes on every
// processor. REQUIRES: pixels.size() == shape.count(), at least one pixel.
std::vector<uint8_t> jpeg_bytes(const ImageShape& shape, std::span<const uint8_t> pixels,
                                const JpegOptions& options = {});
std::vector<uint8_t> png_bytes(const ImageShape& shape, std::span<const uint8_t> pixels);

}  // namespace lockstep::data
