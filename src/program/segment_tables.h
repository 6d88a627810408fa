#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::program {

/// The offset of a storage in a segment's table; null if it is not there.
inline const int64_t* find_offset(const std::vector<std::pair<int, int64_t>>& table, int storage) {
  for (const auto& [id, offset] : table)
    if (id == storage) return &offset;
  return nullptr;
}

}  // namespace lockstep::program
