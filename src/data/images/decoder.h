#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/images/image_header.h"
#include "data/transforms/image.h"

namespace lockstep::data {

/// What is decoded of an image file, in its stored orientation.
struct DecodeRequest {
  int64_t height = 0, width = 0;  ///< as the header says; another size is damage: the file has changed
  Region region;                  ///< of the image reduced by `reduction`
  int64_t reduction = 1;          ///< of JPEGs: 1, 2, 4 or 8; sizes are rounded up
  uint8_t background = 255;       ///< behind what is transparent
};

/// Decodes a region as red, green and blue bytes into `rgb` ([region.height, region.width, 3]). Throws
/// ImageDamage. Rows behind the region are not looked at. The same bits on every processor.
///
/// JPEG: all that libjpeg-turbo reads, progressive images too; CMYK as Pillow converts it. PNG: all; 16 bits
/// are rounded to 8, transparent pixels are laid over the background; gamma is not applied.
void decode_jpeg(std::span<const uint8_t> file, const DecodeRequest& request, std::vector<uint8_t>& rgb);
void decode_png(std::span<const uint8_t> file, const DecodeRequest& request, std::vector<uint8_t>& rgb);

}  // namespace lockstep::data
