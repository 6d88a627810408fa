#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "train/thread_ranks.h"
#include "train/worker/initialize.h"

namespace lockstep::train {

inline constexpr const char* kPrecisionCommon = R"(
format_version: 1
trainer { steps: 8 global_batch: 12 virtual_replicas: 4 micro_batch: 2 seed: 7 clip_norm: 0.5 eval_every_steps: 4 }
optimizer { learning_rate: 0.01 adamw {} weight_decay: 0.1 schedule { warmup_steps: 2 cosine { minimum: 0.001 } } }
parallel { reduction: REPRODUCIBLE bucket_bytes: 2048 }
)";
inline constexpr const char* kPrecisionMlp = R"(
model { mlp { image: 6 image: 6 image: 1 hidden: 17 hidden: 13 classes: 5 dropout: 0.3 } }
data { synthetic { samples: 40 eval_samples: 23 classes: 5 } }
)";
inline constexpr const char* kPrecisionLenet = R"(
model { lenet { image: 16 image: 16 image: 1 classes: 4 dropout: 0.2 batch_norm: true } }
data { synthetic { samples: 40 eval_samples: 23 classes: 4 } }
)";
// Embeddings and the head share a weight, which is read narrow; layer norm's are read as they are.
inline constexpr const char* kPrecisionGpt = R"(
model { gpt { vocabulary: 11 context: 6 layers: 2 heads: 2 width: 8 dropout: 0.1 } }
data { synthetic { samples: 40 eval_samples: 23 classes: 11 context: 6 } }
)";

inline config::RunConfig precision_config(const char* model, const std::vector<std::string>& overrides) {
  return config::parse_run_config(std::string(kPrecisionCommon) + model, "test", overrides);
}

/// Runs `body` with a worker that has its first parameters, alone.
inline void with_worker(const config::RunConfig& config, const std::function<void(Worker&)>& body) {
  run_ranks(1, [&](int, comm::Communicator& world) {
    Worker worker(config, {.rank = 0, .world_size = 1, .asynchronous = {}});
    worker.connect(world);
    const auto& graph = worker.compiled().graph();
    for (const HeldParameter& held : worker.held_parameters())
      initialize_parameter(graph.parameter(held.parameter), config.trainer.seed, held.first,
                           {held.data, static_cast<size_t>(held.count)});
    body(worker);
  });
}

}  // namespace lockstep::train
