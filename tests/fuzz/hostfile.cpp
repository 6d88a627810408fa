#include "jobs/hostfile.h"

#include "fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  return {"host-a slots=4\nhost-b slots=2 max_slots=4\n",
          "# all of them\n\n10.0.0.7\tslots=1 # one\nfe80::1\n"};
}

void parse(std::string_view bytes) { jobs::hosts_of(bytes, "hostfile"); }

}  // namespace lockstep::fuzz
