#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::tensor {

/// The fields of a batch, one after the other in one piece of memory, each aligned to 256 bytes.
struct BatchPlaces {
  std::vector<int64_t> offsets;
  int64_t size_bytes = 0;
};

inline BatchPlaces batch_places(std::span<const int64_t> field_bytes) {
  constexpr int64_t kAlignment = 256;
  BatchPlaces places;
  for (const int64_t bytes : field_bytes) {
    places.offsets.push_back(places.size_bytes);
    places.size_bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  return places;
}

}  // namespace lockstep::tensor
