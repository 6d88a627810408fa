#include "comm/conformance.h"

#include <vector>

#include "comm/conformance_support.h"

namespace lockstep::comm {

std::span<const ConformanceCheck> conformance_checks() {
  static const auto all = [] {
    std::vector<ConformanceCheck> checks;
    for (const auto list :
         {collective_checks(), exchange_checks(), group_checks(), failure_checks(), port_checks()})
      checks.insert(checks.end(), list.begin(), list.end());
    return checks;
  }();
  return all;
}

void run_conformance(Communicator& world) {
  for (const auto& check : conformance_checks()) {
    SCOPED_TRACE(check.name);
    const auto own = world.split(0, world.rank());
    check.run(*own);
  }
}

}  // namespace lockstep::comm
