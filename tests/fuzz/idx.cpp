#include "data/idx.h"

#include <numeric>

#include "fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (const auto& dims : {std::vector<int64_t>{9}, {2, 3, 4}, {2, 2, 3, 3}}) {
    int64_t count = 1;
    for (const int64_t dim : dims) count *= dim;
    std::vector<uint8_t> values(static_cast<size_t>(count));
    std::iota(values.begin(), values.end(), uint8_t{0});
    const auto bytes = data::idx_bytes(dims, values);
    all.emplace_back(bytes.begin(), bytes.end());
  }
  return all;
}

void parse(std::string_view bytes) {
  // The rank that the file states, so that it is read; others are refused.
  const int stated = bytes.size() > 3 ? bytes[3] : 1;
  data::read_idx(file_of(bytes), stated == 3 || stated == 4 ? stated : 1);
}

}  // namespace lockstep::fuzz
