#pragma once

#include <cstddef>

#include "pixels/step.h"

namespace lockstep::pixels {

/// Where the parts of a packed sample are: an image as bytes, and the steps that are still to be done. If
/// samples are mixed, also another sample's image and steps, and how the two are mixed.
struct PackedSample {
  uint8_t* image = nullptr;
  uint8_t* partner = nullptr;
  Step* steps = nullptr;          // of the image
  Step* partner_steps = nullptr;  // likewise
  Step* mixing = nullptr;         // one: share, box, or none
  Step* after = nullptr;          // of what was mixed
};

/// How a packed sample lies in memory. It follows from the config alone, so that memory can be planned.
struct PackedLayout {
  Extent image;
  int32_t steps = 0;  ///< of an image before it is mixed
  bool mixes = false;
  int32_t after = 0;        ///< steps after mixing
  bool sums = false;        ///< steps before mixing may be contrast, which sums over the image
  bool sums_after = false;  ///< likewise after it

  LOCKSTEP_HOST_DEVICE int32_t images() const { return mixes ? 2 : 1; }
  LOCKSTEP_HOST_DEVICE int64_t steps_offset() const { return aligned(images() * image.count()); }
  LOCKSTEP_HOST_DEVICE int64_t sample_bytes() const {
    const int64_t count = int64_t{images()} * steps + (mixes ? 1 : 0) + after;
    return aligned(steps_offset() + count * static_cast<int64_t>(sizeof(Step)));
  }
  /// REQUIRES: `sample` has sample_bytes(), aligned to 4 bytes.
  LOCKSTEP_HOST_DEVICE PackedSample parts(std::byte* sample) const {
    PackedSample parts;
    parts.image = reinterpret_cast<uint8_t*>(sample);
    parts.steps = reinterpret_cast<Step*>(sample + steps_offset());
    parts.after = parts.steps + int64_t{images()} * steps;
    if (mixes) {
      parts.partner = parts.image + image.count();
      parts.partner_steps = parts.steps + steps;
      parts.mixing = parts.after++;
    }
    return parts;
  }
  bool operator==(const PackedLayout&) const = default;

 private:
  LOCKSTEP_HOST_DEVICE static int64_t aligned(int64_t size_bytes) { return (size_bytes + 15) / 16 * 16; }
};

}  // namespace lockstep::pixels
