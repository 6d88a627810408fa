#include "checkpoint/strict_json.h"
#include "exchange/family.h"
#include "fuzz/fuzz.h"
#include "model/presets.h"

namespace lockstep::fuzz {
namespace {

const ModelSpec& gpt() {
  static const ModelSpec model =
      model::make_gpt({.vocabulary = 11, .context = 8, .layers = 1, .heads = 2, .width = 4});
  return model;
}

const ModelSpec& llama() {
  static const ModelSpec model = model::make_llama({.vocabulary = 11,
                                                    .context = 8,
                                                    .layers = 1,
                                                    .heads = 2,
                                                    .key_value_heads = 1,
                                                    .width = 4,
                                                    .hidden = 6});
  return model;
}

}  // namespace

std::vector<std::string> seeds() {
  return {exchange::families::kGpt2.config_text(gpt(), {}),
          exchange::families::kLlama.config_text(llama(), {})};
}

void parse(std::string_view bytes) {
  const auto config = checkpoint::parse_strict_json(bytes, "input");
  const exchange::Family& family = exchange::family_of(config, "input");
  family.preset_text(config, 0);
  family.differences(family.name == "gpt2" ? gpt() : llama(), config);
}

}  // namespace lockstep::fuzz
