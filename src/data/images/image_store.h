#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/images/image_header.h"

namespace lockstep::data {

/// What is known of an image before it is decoded.
struct ImageFacts {
  int32_t label = 0;
  int64_t size_bytes = 0;
  uint64_t beginning = 0;  ///< hash of the first 4 KiB
  ImageHeader header;
};

/// Where the images of a data set are: in files of their own, or in records. Immutable; thread-safe.
class ImageStore {
 public:
  virtual ~ImageStore() = default;
  virtual int64_t count() const = 0;
  virtual const ImageFacts& facts(int64_t image) const = 0;
  /// Where it is, for messages; on one line.
  virtual std::string place(int64_t image) const = 0;
  /// All of its bytes. They may lie in `room`, and are valid while it does not change. Throws ImageDamage if
  /// they are not those that the store was opened with.
  virtual std::span<const uint8_t> bytes(int64_t image, std::vector<uint8_t>& room) const = 0;
};

}  // namespace lockstep::data
