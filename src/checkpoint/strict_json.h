#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

/// Parses JSON that may be damaged or forged. Refuses duplicate keys, invalid UTF-8, nesting deeper than 8,
/// and everything that is not JSON. Throws CheckpointError, which begins with `name`.
nlohmann::json parse_strict_json(std::string_view text, const std::string& name);

}  // namespace lockstep::checkpoint
