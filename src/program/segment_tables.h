#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::program {

/// Rounded up to where the next thing of a segment's memory begins.
inline int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// The offset of a storage in a segment's table; null if it is not there.
inline const int64_t* find_offset(const std::vector<std::pair<int, int64_t>>& table, int storage) {
  for (const auto& [id, offset] : table)
    if (id == storage) return &offset;
  return nullptr;
}

}  // namespace lockstep::program
