#include "doctor/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/ensure.h"
#include "lockstep/error.h"

namespace lockstep::doctor {
namespace {

using Json = nlohmann::ordered_json;

constexpr Level kLevels[] = {Level::ok, Level::skip, Level::warn, Level::fail};

size_t count(const std::vector<Finding>& findings, Level level) {
  return static_cast<size_t>(
      std::ranges::count_if(findings, [level](const Finding& each) { return each.level == level; }));
}

Level worst_of(const std::vector<Finding>& findings) {
  for (const Level level : {Level::fail, Level::warn})
    if (count(findings, level) > 0) return level;
  return Level::ok;
}

/// What other programs said may have several lines.
std::string in_one_line(std::string text) {
  for (char& letter : text)
    if (static_cast<unsigned char>(letter) < ' ') letter = ' ';
  return text;
}

Json json_list(const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const auto& each : findings)
    list.push_back(
        {{"check", each.check}, {"result", name_of(each.level)}, {"found", each.found}, {"fix", each.fix}});
  return list;
}

/// Texts of files and other programs need not be UTF-8.
std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string_view name_of(Level level) {
  constexpr std::string_view kNames[] = {"ok", "skip", "warn", "fail"};
  return kNames[static_cast<size_t>(level)];
}

std::string line_of(const Finding& finding) {
  return fmt::format("{:<4}  {}: {}{}{}\n", name_of(finding.level), finding.check, in_one_line(finding.found),
                     finding.fix.empty() ? "" : "; fix: ", in_one_line(finding.fix));
}

std::string summary_of(const std::vector<Finding>& findings) {
  const size_t warnings = count(findings, Level::warn), failures = count(findings, Level::fail);
  return fmt::format("{} ok, {} skipped, {} warning{}, {} failure{}\n", count(findings, Level::ok),
                     count(findings, Level::skip), warnings, warnings == 1 ? "" : "s", failures,
                     failures == 1 ? "" : "s");
}

std::string json_of(const std::vector<Finding>& findings) {
  return dump({{"result", name_of(worst_of(findings))}, {"checks", json_list(findings)}}) + "\n";
}

int exit_code_of(const std::vector<Finding>& findings) {
  switch (worst_of(findings)) {
    case Level::fail:
      return static_cast<int>(ExitCode::unavailable);
    case Level::warn:
      return 1;
    default:
      return static_cast<int>(ExitCode::done);
  }
}

std::string encode(const std::vector<Finding>& findings) { return dump(json_list(findings)); }

std::vector<Finding> decode(const std::string& text) {
  std::vector<Finding> findings;
  try {
    for (const auto& each : Json::parse(text)) {
      const std::string name = each.at("result");
      const auto level =
          std::ranges::find_if(kLevels, [&name](Level candidate) { return name_of(candidate) == name; });
      ensure(level != std::end(kLevels), "a finding has a level that does not exist");
      findings.push_back({*level, each.at("found"), each.at("fix"), each.at("check")});
    }
  } catch (const Json::exception& error) {
    throw InternalError(fmt::format("findings cannot be read: {}", error.what()));
  }
  return findings;
}

}  // namespace lockstep::doctor
