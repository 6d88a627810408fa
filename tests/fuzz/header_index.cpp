#include "data/images/header_index.h"

#include <cstring>
#include <stdexcept>

#include "base/hash.h"
#include "fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

constexpr uint64_t kList = 7;

}  // namespace

std::vector<std::string> seeds() {
  const data::KnownHeader png{.stamp = {.size_bytes = 90, .changed_ns = 5, .status_ns = 6, .inode = 7},
                              .beginning = 3,
                              .header = {.format = data::ImageFormat::png, .height = 4, .width = 6}};
  data::KnownHeader turned = png;
  turned.header.orientation = 6;
  return {data::header_index_bytes(kList, {}), data::header_index_bytes(kList, {png, {}, turned})};
}

void parse(std::string_view bytes) {
  constexpr size_t kEntry = 56, kRest = 32;
  const size_t count = bytes.size() < kRest ? 0 : (bytes.size() - kRest) / kEntry;
  std::string fixed(bytes);
  // With the checksum that changed bytes would need.
  if (const size_t end = fixed.size() - sizeof(uint64_t); fixed.size() >= kRest) {
    const uint64_t hash = hash64(std::string_view(fixed).substr(0, end));
    std::memcpy(fixed.data() + end, &hash, sizeof hash);
  }
  for (const std::string_view each : {bytes, std::string_view(fixed)})
    if (const auto read = data::headers_from_bytes(each, kList, count))
      if (data::headers_from_bytes(data::header_index_bytes(kList, *read), kList, count) != read)
        throw std::logic_error("headers that were read are written otherwise");
}

}  // namespace lockstep::fuzz
