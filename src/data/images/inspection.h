#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/data_options.h"
#include "data/images/image_header.h"
#include "data/images/image_list.h"
#include "data/images/image_store.h"

namespace lockstep::data {

/// A file whose header is good.
struct InspectedImage : ImageFacts {
  std::string path, name;
  int64_t changed_ns = 0;  ///< when the file was changed last, in nanoseconds since 1970
};

struct Inspection {
  std::vector<InspectedImage> images;  ///< in the list's order
  int64_t left_out = 0;                ///< damaged, with DamagePolicy::skip
};

/// Looks at the header of every file, on several threads. Damage is a file that is missing or no image, and
/// an image of more than `images.most_pixels`. Throws DataError for the first in the list, or with
/// `on_damage: SKIP` warns and leaves it out, and adds it to `found`. With `cache_directory` reads only
/// headers that are not known from before (HeaderIndex), unless damage is looked for (`found`); those of
/// files that were changed within `settling` before now are read again.
Inspection inspect_images(const ImageList& list, const std::vector<int32_t>& labels,
                          const DataOptions& options,
                          std::chrono::nanoseconds settling = std::chrono::seconds(2));

/// "PLACE (sample 7, byte 130): expected ..., found ...; what to do".
std::string damage_message(const std::string& place, int64_t sample, const ImageDamage& damage);

/// The whole file. Throws ImageDamage if its size is not that which was inspected. Returns false if it was
/// changed since, or is being changed.
bool read_image_file(const InspectedImage& image, std::vector<uint8_t>& bytes);

}  // namespace lockstep::data
