#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

/// Parses JSON that somebody may have damaged or forged: refuses duplicate keys, bad UTF-8 and nesting deeper
/// than 8 on top of everything that is no JSON. Throws CheckpointError beginning with `name`.
nlohmann::json parse_strict_json(std::string_view text, const std::string& name);

}  // namespace lockstep::checkpoint
