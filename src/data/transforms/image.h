#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "pixels/step.h"

namespace lockstep::data {

/// Height, width and channels of an image, whose values lie in this order: the channels of a pixel side by
/// side.
struct ImageShape {
  int64_t height = 0, width = 0, channels = 0;
  int64_t pixels() const { return height * width; }
  int64_t count() const { return pixels() * channels; }
  std::string to_string() const;  ///< "480x640x3"
  bool operator==(const ImageShape&) const = default;
};

inline pixels::Extent extent_of(const ImageShape& shape) {
  return {static_cast<int32_t>(shape.height), static_cast<int32_t>(shape.width),
          static_cast<int32_t>(shape.channels)};
}

/// Rows [y, y + height) and columns [x, x + width) of an image.
struct Region {
  int64_t y = 0, x = 0, height = 0, width = 0;
  bool operator==(const Region&) const = default;
};

/// Borrowed values of an image or of a part of one. Either bytes, which mean value / 255, or floats.
struct PixelView {
  ImageShape shape;
  const uint8_t* bytes = nullptr;
  const float* floats = nullptr;
};

/// An image that is still to be read, so that only what is needed of it is decoded.
class PixelSource {
 public:
  virtual ~PixelSource() = default;
  virtual ImageShape shape() const = 0;
  /// Whether the values are bytes. What is cut out of them and resized is rounded to bytes, too.
  virtual bool has_bytes() const { return false; }
  /// The largest divisor up to `most` by which reading can make the image smaller, for less work. Sizes are
  /// rounded up.
  virtual int64_t reduction(int64_t most) const = 0;
  /// A part of the image reduced by `reduction`. Valid until the next call. Throws DataError for damage.
  virtual PixelView read(const Region& region, int64_t reduction) = 0;
};

}  // namespace lockstep::data
