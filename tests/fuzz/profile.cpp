#include "config/run_config.h"
#include "fuzz/fuzz.h"
#include "lockstep/error.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  return {
      "device: \"cpu\" storage: \"float32\" micro_batch: 4 model: \"0123456789abcdef\" intra_op_threads: 2\n"
      "layer { name: \"fc1\" forward_us: 12.5 backward_input_us: 3 backward_weight_us: 4.25 }\n"
      "layer { name: \"loss\" forward_us: 1 }\nupdate_ms: 0.5\n",
  };
}

void parse(std::string_view bytes) {
  const model::Profile profile = config::profile_from_text(std::string(bytes), "profile");
  const std::string text = config::profile_to_text(profile);
  if (config::profile_to_text(config::profile_from_text(text, "again")) != text)
    throw InternalError("a profile is another one when it is written and read");
}

}  // namespace lockstep::fuzz
