#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"
#include "train/thread_ranks.h"

// Models of several chunks of 65,536 elements, as far as that is what is cut; batch norm, dropout, tied
// weights, clipping, accumulation.

namespace lockstep::train {

inline constexpr const char* kCommon = R"(
format_version: 1
trainer { steps: 5 global_batch: 12 virtual_replicas: 4 micro_batch: 1 seed: 7 clip_norm: 0.5 eval_every_steps: 3 }
optimizer { learning_rate: 0.01 adamw {} weight_decay: 0.1 }
parallel { reduction: REPRODUCIBLE bucket_bytes: 400000 }
)";
inline constexpr const char* kMlp = R"(
model { mlp { image: 16 image: 16 image: 1 hidden: 300 hidden: 270 classes: 5 dropout: 0.3 } }
data { synthetic { samples: 40 eval_samples: 23 classes: 5 shape: 16 shape: 16 shape: 1 } }
)";
inline constexpr const char* kLenet = R"(
model { lenet { image: 16 image: 16 image: 1 classes: 4 dropout: 0.2 batch_norm: true } }
data { synthetic { samples: 40 eval_samples: 23 classes: 4 shape: 16 shape: 16 shape: 1 } }
)";
inline constexpr const char* kGpt = R"(
model { gpt { vocabulary: 1100 context: 8 layers: 1 heads: 2 width: 64 dropout: 0.1 tied_head: true } }
data { synthetic { samples: 40 eval_samples: 23 classes: 1100 context: 8 } }
)";

/// All of which have the bits of one process.
inline const std::vector<std::string> kSynchronousLayouts = {
    "dp=2",
    "dp=3",
    "dp=4",
    "dp=2,recompute=full",
    "dp=1,pp=2",
    "dp=2,pp=2",
    "dp=2,pp=2,schedule=gpipe",
    "dp=2,pp=2,schedule=zero_bubble",
    "dp=2,shard=optimizer",
    "dp=3,shard=optimizer",
    "dp=2,pp=2,shard=optimizer",
    "dp=1,sync=ps,servers=1",
    "dp=2,sync=ps,servers=1",
    "dp=3,sync=ps,servers=2",
    "dp=2,sync=ps,servers=2,assign=whole",
    "dp=2,sync=ps,servers=2,placement=colocated",
    "dp=3,sync=ps,servers=1,placement=colocated",
    "dp=2,pp=2,sync=ps,servers=2",
    "dp=2,sync=ps,servers=1,mode=stale,bound=0",
};

inline config::RunConfig config_of(const char* model, std::vector<std::string> overrides = {}) {
  return config::parse_run_config(std::string(kCommon) + model, "test", overrides);
}

inline config::RunConfig with(config::RunConfig config, const std::string& layout) {
  config.parallel.layout = layout::parse_layout(layout);
  return config;
}
/// Processes of a layout that says how many replicas it has.
inline int processes_of(const std::string& layout) { return layout::parse_layout(layout).world_size(); }

inline Trace trace_of(const config::RunConfig& config, const std::string& layout,
                      const TraceOptions& options = {}) {
  return train_on_threads(with(config, layout), processes_of(layout), options);
}

/// What suites of layouts are about: a model, and how it is trained.
struct ModelCase {
  const char* name;
  const char* model;
  std::vector<std::string> overrides;

  config::RunConfig config(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), more.begin(), more.end());
    return config_of(model, all);
  }
};

/// Gradients of the first steps overflow.
inline config::RunConfig config_that_overflows(const char* model = kMlp) {
  return config_of(model, {"precision.compute=FLOAT16",
                           "precision.loss_scaling={initial_scale: 1099511627776 maximum: 1099511627776}"});
}

}  // namespace lockstep::train
