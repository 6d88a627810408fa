#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep::cli {

/// "80GB" (80 * 10^9), "24 GiB", "1.5MiB" or plain bytes, to a whole number of bytes. Nothing if it is no
/// size above 0.
std::optional<int64_t> parse_byte_size(std::string_view text);

}  // namespace lockstep::cli
