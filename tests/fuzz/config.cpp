#include <optional>

#include "config/run_config.h"
#include "fuzz/fuzz.h"
#include "lockstep/error.h"

namespace lockstep::fuzz {
namespace {

constexpr std::string_view kSet = "--set ", kLayout = "--layout ";

}  // namespace

/// A config, with lines of what a command line may add to it.
std::vector<std::string> seeds() {
  const std::string rest =
      "trainer { global_batch: 8 steps: 2 micro_batch: 2 }\noptimizer { learning_rate: 0.1 sgd { momentum: "
      "0.9 } }\n";
  return {
      "format_version: 1\nmodel { mlp { image: [6, 6, 1] hidden: 17 classes: 5 dropout: 0.3 } }\n"
      "data { synthetic { samples: 40 classes: 5 } }\n" +
          rest,
      "model { gpt { vocabulary: 11 context: 6 layers: 2 heads: 2 width: 32 } }\n"
      "data { synthetic { samples: 40 classes: 11 context: 6 } }\n" +
          rest +
          "parallel { reduction: REPRODUCIBLE dp: 2 }\n--set trainer.steps=3\n--set optimizer.adamw={ beta2: "
          "0.99 }\n"
          "--layout dp=2,pp=2,schedule=1f1b\n",
      "model { lenet { image: [20, 24, 3] } } # a comment\n"
      "data { images { train: 'a' eval_fraction: 0.1 classes: ['x', \"y\"] } transforms { "
      "random_resized_crop {} }\n"
      "transforms { mixup { alpha: 0.2 } } eval_transforms { resize {} } transforms_on: GPU }\n" +
          rest + "--set data.transforms[1].mixup.alpha=0.5\n",
      "model { input { name: 'image' shape: [4, 4, 1] } input { name: 'label' type: INT32 }\n"
      "layer { name: 'flat' input: 'image' flatten {} } layer { name: 'b' block { repeat: 3 layer { name: "
      "'fc' linear { units: "
      "3 } } layer { name: 'r' relu {} } } } layer { name: 'last' linear { units: 3 } } layer { name: 'loss' "
      "input: ['last', "
      "'label'] softmax_cross_entropy {} } }\n"
      "data { synthetic { samples: 8 classes: 3 } transforms { flip {} } }\n" +
          rest,
  };
}

void parse(std::string_view bytes) {
  std::string text;
  std::vector<std::string> overrides;
  std::optional<std::string> layout;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    if (line.starts_with(kSet))
      overrides.emplace_back(line.substr(kSet.size()));
    else if (line.starts_with(kLayout))
      layout.emplace(line.substr(kLayout.size()));
    else
      text.append(line).append("\n");
  }
  const config::RunConfig config = config::parse_run_config(text, "config", overrides, layout);
  // What a run keeps is the same run.
  const config::RunConfig again = config::parse_run_config(config.effective_text, "again", {});
  if (again.effective_text != config.effective_text)
    throw InternalError("the effective text of a config is another one when it is read");
  if (again.math_hash != config.math_hash)
    throw InternalError("the effective text of a config is of other mathematics");
}

}  // namespace lockstep::fuzz
