#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace lockstep::ops {

// Which keys a query of an attention may see besides what causality says. Kernels turn the optional inputs
// into one number for each position: its document, or kNoDocument if it is left out. A query sees the keys of
// its own document; one that is left out sees none.

inline constexpr int32_t kNoDocument = -1;

/// The document of a position, from its mask and its number.
LOCKSTEP_HOST_DEVICE inline int32_t attention_document(float mask, int32_t number) {
  return mask != 0.0f && number >= 0 ? number : kNoDocument;
}
LOCKSTEP_HOST_DEVICE inline bool of_one_document(int32_t query, int32_t key) {
  return query >= 0 && query == key;
}

/// The documents of some positions lie in [first, last]; none of them has one if first > last. Positions of
/// two ranges that do not meet do not see each other.
struct DocumentRange {
  int32_t first = INT32_MAX, last = kNoDocument;
  LOCKSTEP_HOST_DEVICE void add(int32_t document) {
    const int32_t or_most = document < 0 ? INT32_MAX : document;
    first = or_most < first ? or_most : first;
    last = document > last ? document : last;
  }
  LOCKSTEP_HOST_DEVICE void add(const DocumentRange& other) {
    first = other.first < first ? other.first : first;
    last = other.last > last ? other.last : last;
  }
  LOCKSTEP_HOST_DEVICE bool meets(const DocumentRange& other) const {
    return first <= other.last && other.first <= last;
  }
};

}  // namespace lockstep::ops
