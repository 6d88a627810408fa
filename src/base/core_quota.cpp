#include "base/core_quota.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <string_view>

namespace lockstep {
namespace {

/// The path of this process's group below the root, "" for the root itself.
std::string own_group(const std::filesystem::path& membership) {
  constexpr std::string_view kVersion2 = "0::/";
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(kVersion2)) return line.substr(kVersion2.size());
  return "";
}

}  // namespace

std::vector<std::filesystem::path> control_groups(const std::filesystem::path& membership,
                                                  const std::filesystem::path& root) {
  std::vector<std::filesystem::path> groups{root};
  for (const auto& part : std::filesystem::path(own_group(membership)))
    groups.push_back(groups.back() / part);
  return groups;
}

std::optional<double> quota_cores(const std::filesystem::path& group) {
  // The file holds "QUOTA PERIOD" in microseconds, or "max PERIOD".
  std::ifstream file(group / "cpu.max");
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || !(quota > 0) || !(period > 0)) return std::nullopt;
  return quota / period;
}

int core_quota(const std::filesystem::path& membership, const std::filesystem::path& root) {
  int quota = 0;
  // A group's limit holds for those within it.
  for (const auto& group : control_groups(membership, root)) {
    const auto cores = quota_cores(group);
    if (!cores) continue;
    const int own = static_cast<int>(std::clamp(std::ceil(*cores), 1.0, 1e6));
    quota = quota > 0 ? std::min(quota, own) : own;
  }
  return quota;
}

}  // namespace lockstep
