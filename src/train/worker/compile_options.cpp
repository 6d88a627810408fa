#include "train/worker/compile_options.h"

#include <algorithm>
#include <map>
#include <string>

#include "base/ensure.h"
#include "data/packed_images.h"
#include "plan/balance.h"

namespace lockstep::train {

namespace {

/// What of images comes packed, in training or in evaluation; nothing if none is.
std::optional<pixels::PackedLayout> packed_layout(const config::RunConfig& config, bool training) {
  if (!config.data.transforms_on_gpu) return {};
  const auto image = std::ranges::find(config.model.inputs, "image", &ModelInput::name);
  ensure(image != config.model.inputs.end(), "a config whose images come packed has a model that reads them");
  const Shape& shape = image->spec.shape;
  return data::packed_layout(config.data, {shape[0], shape[1], shape[2]}, training);
}

std::map<std::string, MatrixSize> matrices_of(const config::RunConfig& config) {
  std::map<std::string, MatrixSize> matrices;
  for (const auto& [name, rates] : config.group_rates)
    if (rates.matrix.is_matrix()) matrices.emplace(name, rates.matrix);
  return matrices;
}

}  // namespace

compile::CompileOptions compile_options(const config::RunConfig& config) {
  return {.graph = config.graph,
          .storage = config.precision.storage(),
          .tf32 = config.precision.compute == config::ComputeType::tf32,
          .fused_gelu = config.precision.fused_gelu,
          .global_batch = config.trainer.global_batch,
          .micro_batch = config.trainer.micro_batch,
          .virtual_replicas = config::resolved_virtual_replicas(config.trainer),
          .parallel = config.parallel,
          .state_slots = optim::state_slots(config.optimizer),
          .measures = {.parameters = optim::measures_parameters(config.optimizer),
                       .proposed_slots = optim::proposed_slots(config.optimizer)},
          .matrices = matrices_of(config),
          .clips_gradients = config.trainer.clip_norm != 0,
          .compares_replicas = config.trainer.check_every_steps > 0,
          .skips_nonfinite = config.trainer.nonfinite != config::NonFinitePolicy::ignore,
          .packed_training = packed_layout(config, true),
          .packed_evaluation = packed_layout(config, false)};
}

compile::CompileOptions fitted_options(const config::RunConfig& config, const compile::CompileFacts& facts) {
  return plan::balanced(compile_options(config), facts, config.device.memory_limit);
}

}  // namespace lockstep::train
