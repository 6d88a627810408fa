#include "exchange/tensor_names.h"

#include <algorithm>
#include <set>
#include <string_view>

namespace lockstep::exchange {
namespace {

constexpr std::string_view kPrefixes[] = {"module.", "_orig_mod.", "model.", "transformer."};

std::string canonical(std::string_view name) {
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view prefix : kPrefixes)
      if (name.starts_with(prefix) && name.size() > prefix.size()) {
        name.remove_prefix(prefix.size());
        again = true;
      }
  }
  return std::string(name);
}

/// What one name has before the other; "-..." if the expected one has it.
std::string prefix_between(const std::string& expected, const std::string& found) {
  if (found.size() > expected.size() && found.ends_with(expected))
    return found.substr(0, found.size() - expected.size());
  if (expected.size() > found.size() && expected.ends_with(found))
    return "-" + expected.substr(0, expected.size() - found.size());
  return "";
}

/// The prefix with which most of the expected names are there; "" if there is none.
std::string common_prefix(const std::vector<std::string>& expected, const std::vector<std::string>& there) {
  const std::set<std::string> wanted(expected.begin(), expected.end());
  std::map<std::string, int> counts;
  for (const auto& name : there)
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
      if (wanted.contains(name.substr(dot + 1))) ++counts[name.substr(0, dot + 1)];
  const auto most = std::ranges::max_element(counts, {}, [](const auto& pair) { return pair.second; });
  return most == counts.end() ? "" : most->first;
}

}  // namespace

NameMatch match_names(const std::vector<std::string>& expected, const std::vector<std::string>& there) {
  const std::set<std::string> exact(there.begin(), there.end());
  std::map<std::string, std::string> by_canonical;
  for (const auto& name : there) by_canonical.emplace(canonical(name), name);
  const auto find = [&](const std::string& name) -> std::string {
    if (exact.contains(name)) return name;
    const auto found = by_canonical.find(canonical(name));
    return found == by_canonical.end() ? "" : found->second;
  };
  const bool any = std::ranges::any_of(expected, [&](const auto& name) { return !find(name).empty(); });
  const std::string other = any ? "" : common_prefix(expected, there);

  NameMatch match;
  std::set<std::string> used;
  for (const auto& name : expected) {
    const std::string found = other.empty() ? find(name) : exact.contains(other + name) ? other + name : "";
    if (found.empty() || !used.insert(found).second) {
      match.missing.push_back(name);
      continue;
    }
    match.found.emplace(name, found);
    if (match.prefix.empty()) match.prefix = prefix_between(name, found);
  }
  for (const auto& name : there)
    if (!used.contains(name)) match.left_over.push_back(name);
  return match;
}

bool begins_with_name(const std::string& name, const std::string& beginning) {
  return name == beginning ||
         (name.starts_with(beginning) && (beginning.ends_with('.') || name[beginning.size()] == '.'));
}

}  // namespace lockstep::exchange
