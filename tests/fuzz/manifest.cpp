#include "checkpoint/manifest.h"

#include "fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  checkpoint::Manifest manifest{.run_id = "a1b2", .step = 3, .layout = "dp=2"};
  manifest.math_fields = {{"trainer.seed", "7"}};
  manifest.files.push_back({.name = "model.safetensors", .size_bytes = 96});
  return {to_text(manifest)};
}

void parse(std::string_view bytes) { checkpoint::manifest_from_text(bytes, "input"); }

}  // namespace lockstep::fuzz
