#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/data_options.h"
#include "data/images/image_header.h"
#include "data/images/image_list.h"

namespace lockstep::data {

/// A file whose header is good.
struct InspectedImage {
  std::string path, name;
  int32_t label = 0;
  int64_t size_bytes = 0;
  uint64_t beginning = 0;  ///< hash of the first 4 KiB
  ImageHeader header;
};

struct Inspection {
  std::vector<InspectedImage> images;  ///< in the list's order
  int64_t left_out = 0;                ///< damaged, with DamagePolicy::skip
};

/// Looks at the header of every file, on several threads. Damage is a file that is missing or no image, and
/// an image of more than `most_pixels`. Throws DataError for the first in the list, or with
/// DamagePolicy::skip warns and leaves it out.
Inspection inspect_images(const ImageList& list, const std::vector<int32_t>& labels, int64_t most_pixels,
                          DamagePolicy policy);

/// "PATH (sample 7, byte 130): expected ..., found ...; what to do".
std::string damage_message(const std::string& path, int64_t sample, const ImageDamage& damage);

/// The whole file. Throws ImageDamage if it is not as it was when it was inspected.
void read_image_file(const InspectedImage& image, std::vector<uint8_t>& bytes);

}  // namespace lockstep::data
