#pragma once

#include <cstdint>
#include <string>

#include "data/images/image_file.h"

namespace lockstep::data {

enum class ImageFormat : uint8_t {
  jpeg,
  png,
  pixels  ///< no file: bytes, [height, width, channels], as records have them
};

/// What the beginning of a file says about its image.
struct ImageHeader {
  ImageFormat format = ImageFormat::jpeg;
  int64_t height = 0, width = 0;  ///< as stored
  /// EXIF's: 1 as stored, 2 mirrored, 3 turned by half, 4 upside down, 5 to 8 with rows and columns
  /// exchanged.
  uint8_t orientation = 1;

  bool exchanges_axes() const { return orientation >= 5; }
  int64_t shown_height() const { return exchanges_axes() ? width : height; }
  int64_t shown_width() const { return exchanges_axes() ? height : width; }
  bool operator==(const ImageHeader&) const = default;
};

/// Damage of an image: what was expected and found, and where.
struct ImageDamage {
  int64_t byte = 0;  ///< of the file
  std::string what;
};

/// Reads the header, whatever the file is called, and no more of the file than that. Throws ImageDamage,
/// which does not name the file, if it is no JPEG or PNG, or if the header is damaged; IoError if it cannot
/// be read.
ImageHeader read_image_header(const ImageFile& file);

/// The orientation that a TIFF structure, the content of EXIF, states; 1 if it states none, or is damaged.
uint8_t exif_orientation(std::span<const uint8_t> tiff);

}  // namespace lockstep::data
