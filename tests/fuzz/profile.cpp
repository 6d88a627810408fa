#include "config/run_config.h"
#include "fuzz/fuzz.h"
#include "model/node_times.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() { return {config::profile_to_text({})}; }

void parse(std::string_view bytes) { config::profile_from_text(std::string(bytes), "input"); }

}  // namespace lockstep::fuzz
