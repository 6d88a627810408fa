#include "checkpoint/strict_json.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

constexpr int kDeepest = 8;

}  // namespace

nlohmann::json parse_strict_json(std::string_view text, const std::string& name) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> keys;  // of each object that is open
  const auto check = [&](int depth, Event event, nlohmann::json& value) {
    if (depth > kDeepest)
      throw CheckpointError(
          fmt::format("{}: expected JSON at most {} levels deep, found more", name, kDeepest));
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      throw CheckpointError(
          fmt::format("{}: expected each name once, found '{}' twice", name, value.get<std::string>()));
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), check);
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: expected JSON, found damage ({})", name, error.what()));
  }
}

}  // namespace lockstep::checkpoint
