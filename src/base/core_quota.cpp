#include "base/core_quota.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <string_view>

namespace lockstep {
namespace {

/// Of one group: its file cpu.max holds "QUOTA PERIOD" in microseconds, or "max PERIOD".
int quota_of(const std::filesystem::path& group) {
  std::ifstream file(group / "cpu.max");
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || !(quota > 0) || !(period > 0)) return 0;
  return static_cast<int>(std::clamp(std::ceil(quota / period), 1.0, 1e6));
}

/// The path of this process's group below the root, "" for the root itself.
std::string own_group(const std::filesystem::path& membership) {
  constexpr std::string_view kVersion2 = "0::/";
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(kVersion2)) return line.substr(kVersion2.size());
  return "";
}

}  // namespace

int core_quota(const std::filesystem::path& membership, const std::filesystem::path& root) {
  int quota = quota_of(root);
  std::filesystem::path group = root;
  // A group's limit holds for those within it.
  for (const auto& part : std::filesystem::path(own_group(membership))) {
    group /= part;
    if (const int own = quota_of(group); own > 0) quota = quota > 0 ? std::min(quota, own) : own;
  }
  return quota;
}

}  // namespace lockstep
