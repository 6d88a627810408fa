#include <stdexcept>

#include "config/run_config.h"
#include "fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  return {R"(model { lenet { image: [16, 16, 3] classes: 10 label_smoothing: 0.1 } }
data {
  images { train: "train" eval: "eval" classes: ["a", "b"] }
  transforms { random_resized_crop { area_min: 0.5 } } transforms { flip {} }
  transforms { normalize { mean: [0.3, 0.3, 0.4] deviation: [1, 1, 2] } } transforms { mixup { alpha: 0.2 } }
  eval_transforms { resize {} }
}
trainer { global_batch: 16 virtual_replicas: 4 steps: 9 seed: 3 clip_norm: 1.5 }
optimizer { learning_rate: 0.01 adam {} warmup_steps: 2 }
parallel { dp: 2 sync: RING reduction: REPRODUCIBLE }
)",
          R"(model {
  input { name: "tokens" type: INT32 shape: 8 } input { name: "label" type: INT32 shape: 8 }
  layer { name: "wte" input: "tokens" embedding { vocabulary: 11 width: 6 } }
  layer { name: "h" block { repeat: 2 layer { name: "fc" linear { units: 6 } } layer { name: "act" gelu {} } } }
  layer { name: "head" linear { units: 11 bias: false } tie { parameter: "weight" with: "wte.weight" } }
  layer { name: "loss" input: ["head", "label"] softmax_cross_entropy { ignore_index: 0 } }
}
data { synthetic { samples: 64 eval_samples: 8 classes: 11 } prefetch_threads: 2 }
trainer { epochs: 2 global_batch: 8 eval_every_steps: 3 }
optimizer { learning_rate: 0.1 sgd { momentum: 0.9 } }
precision { compute: BFLOAT16 }
checkpoint { every_steps: 3 keep: 2 }
metrics { progress: false }
)"};
}

void parse(std::string_view bytes) {
  const config::RunConfig read = config::parse_run_config(std::string(bytes), "input", {});
  // With every default filled in, it is the same run.
  const config::RunConfig again = config::parse_run_config(read.effective_text, "effective", {});
  if (again.config_hash != read.config_hash) throw std::logic_error("the effective config is another run");
}

}  // namespace lockstep::fuzz
