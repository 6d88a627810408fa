#include <algorithm>

#include "data/token_file.h"
#include "fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  return {data::token_header(3, 2) + std::string("\1\0\2\0\3\0", 6),
          data::token_header(2, 4) + std::string("\1\0\0\0\2\0\0\0", 8), std::string("\1\0\2\0\3\0\4\0", 8)};
}

void parse(std::string_view bytes) {
  // Of files that are whole words: others are of two bytes.
  const auto format = bytes.size() % 4 == 0 && bytes.size() % 8 != 0 ? data::TokenFormat::uint32
                                                                     : data::TokenFormat::automatic;
  const data::TokenFile file(file_of(bytes), format, 0);
  std::vector<int32_t> tokens(static_cast<size_t>(std::min<int64_t>(file.count(), 64)));
  file.read(file.count() - static_cast<int64_t>(tokens.size()), tokens);
}

}  // namespace lockstep::fuzz
