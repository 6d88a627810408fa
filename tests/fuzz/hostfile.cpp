#include "jobs/hostfile.h"

#include <algorithm>

#include "fuzz/fuzz.h"
#include "lockstep/error.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  return {"host-a slots=4\nhost-b slots=2 max_slots=4\n",
          "# all of them\n\n10.0.0.7\tslots=1 # one\nfe80::1\n"};
}

void parse(std::string_view bytes) {
  const auto hosts = jobs::hosts_of(bytes, "hostfile");
  const auto lines = 1 + std::ranges::count(bytes, '\n');
  if (std::ssize(hosts) > lines) throw InternalError("a hostfile has more hosts than lines");
  for (const auto& host : hosts)
    if (host.empty() || host.find_first_of(" \t\r\n#") != std::string::npos)
      throw InternalError("a hostfile has a host whose name is none");
}

}  // namespace lockstep::fuzz
