#pragma once

#include <algorithm>
#include <cstdint>

#include "base/simd.h"
#include "ops/attention_documents.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {

// Documents of positions in the loops over one head. A block of queries meets only blocks of keys that may
// have a document in common with it; within such a block, numbers of other documents are replaced.

inline DocumentRange range_of(const int32_t* documents, int64_t first, int64_t end) {
  DocumentRange range;
  for (int64_t t = first; t < end; ++t) range.add(documents[t]);
  return range;
}

/// numbers[i] = value for those of the keys first_key + i, i < count, that are of another document than the
/// query.
inline void hide_others(float* __restrict numbers, const int32_t* __restrict documents, int32_t query,
                        int64_t first_key, int64_t count, float value) {
  const bool has_one = query >= 0;
  for (int64_t i = 0; i < count; ++i)
    numbers[i] = has_one & (documents[first_key + i] == query) ? numbers[i] : value;
}

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
