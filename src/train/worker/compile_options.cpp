#include "train/worker/compile_options.h"

#include "plan/balance.h"

namespace lockstep::train {

compile::CompileOptions compile_options(const config::RunConfig& config) {
  return {.model = config.model,
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
          .clips_gradients = config.trainer.clip_norm != 0,
          .compares_replicas = config.trainer.check_every_steps > 0,
          .skips_nonfinite = config.trainer.nonfinite != config::NonFinitePolicy::ignore};
}

compile::CompileOptions fitted_options(const config::RunConfig& config, const compile::CompileFacts& facts) {
  return plan::balanced(compile_options(config), facts, config.device.memory_limit);
}

}  // namespace lockstep::train
