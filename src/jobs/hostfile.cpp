#include "jobs/hostfile.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep::jobs {
namespace {

/// What of a line mpirun does not read, though people write it; "" if nothing is wrong.
std::string fault_of_line(std::string_view line, std::string_view host) {
  if (line.find('\r') != std::string_view::npos)
    return "ends in a carriage return, as on Windows; use line feeds only (sed -i 's/\\r$//' FILE)";
  if (line.starts_with("\xef\xbb\xbf")) return "begins with a byte-order mark; save it as UTF-8 without one";
  // HOST:SLOTS, but not the address of a host, which may have several colons.
  const size_t colon = host.find(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == host.size()) return "";
  const std::string_view name = host.substr(0, colon), slots = host.substr(colon + 1);
  const bool is_number = std::ranges::all_of(slots, [](char c) { return c >= '0' && c <= '9'; });
  return is_number
             ? fmt::format("expected 'HOST slots=N', found '{}'; write '{} slots={}'", host, name, slots)
             : "";
}

}  // namespace

std::vector<std::string> hosts_of(std::string_view hostfile, const std::string& path) {
  std::vector<std::string> hosts;
  for (int number = 1; !hostfile.empty(); ++number) {
    const size_t end = hostfile.find('\n');
    const std::string_view line = hostfile.substr(0, end);
    hostfile.remove_prefix(end == std::string_view::npos ? hostfile.size() : end + 1);
    const std::string said{trim(line.substr(0, line.find('#')))};
    const std::string host = said.substr(0, said.find_first_of(" \t"));
    if (const std::string fault = fault_of_line(line, host); !fault.empty())
      throw ConfigError(fmt::format("--hostfile {}:{}: {}", path, number, fault));
    if (!said.empty()) hosts.push_back(host);
  }
  return hosts;
}

}  // namespace lockstep::jobs
