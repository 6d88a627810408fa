#include "cli/byte_size.h"

#include <charconv>
#include <cmath>

namespace lockstep::cli {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},      {"B", 1},        {"kB", 1e3},        {"MB", 1e6},           {"GB", 1e9},
    {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};

}  // namespace

std::optional<int64_t> parse_byte_size(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc()) return {};
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const Unit& known : kUnits) {
    if (known.name != unit) continue;
    const double bytes = std::floor(number * known.bytes);
    constexpr double kMost = 1125899906842624;  // as device.memory_limit
    if (!(bytes >= 1 && bytes <= kMost)) return {};
    return static_cast<int64_t>(bytes);
  }
  return {};
}

}  // namespace lockstep::cli
