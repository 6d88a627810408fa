#pragma once

#include <cstdint>
#include <string>

namespace lockstep::data {

/// Samples that pack_records() has written.
struct RecordsOptions {
  std::string folder;  ///< relative to the data's directory; "": that directory
  // Of images, as in ImagesOptions.
  int64_t channels = 3;
  int64_t background = 255;
  bool scaled_decoding = true;
  bool operator==(const RecordsOptions&) const = default;
};

}  // namespace lockstep::data
