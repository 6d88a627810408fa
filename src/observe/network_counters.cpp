#include "observe/network_counters.h"

#include <fstream>
#include <iterator>
#include <sstream>

#include "base/text.h"

namespace lockstep::observe {

NetworkBytes network_bytes() {
  // Of this process's network namespace, which may not be that of whoever mounted /proc.
  std::ifstream file("/proc/self/net/dev");
  return network_bytes_from(std::string(std::istreambuf_iterator<char>(file), {}));
}

NetworkBytes network_bytes_from(std::string_view text) {
  NetworkBytes interfaces;
  for (const std::string_view line : split(text, '\n')) {
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string name(trim(line.substr(0, colon)));
    // Eight counters of what was received, of which bytes come first, then those of what was sent.
    std::istringstream numbers{std::string(line.substr(colon + 1))};
    double counters[9] = {};
    for (double& counter : counters) numbers >> counter;
    if (numbers && name != "lo") interfaces[name] = {.sent = counters[8], .received = counters[0]};
  }
  return interfaces;
}

NetworkBytes per_step(const NetworkBytes& before, const NetworkBytes& after, double steps) {
  NetworkBytes moved;
  for (const auto& [name, now] : after) {
    const auto then = before.find(name);
    if (then == before.end()) continue;
    const InterfaceBytes bytes{.sent = (now.sent - then->second.sent) / steps,
                               .received = (now.received - then->second.received) / steps};
    if (bytes.sent > 0 || bytes.received > 0) moved[name] = bytes;
  }
  return moved;
}

}  // namespace lockstep::observe
