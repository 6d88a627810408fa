#include "train/worker/compile_options.h"

namespace lockstep {

CompileOptions compile_options(const RunConfig& config) {
  return {.model = config.model,
          .storage = config.precision.storage(),
          .tf32 = config.precision.compute == ComputeType::tf32,
          .fused_gelu = config.precision.fused_gelu,
          .global_batch = config.trainer.global_batch,
          .micro_batch = config.trainer.micro_batch,
          .virtual_replicas = resolved_virtual_replicas(config.trainer),
          .parallel = config.parallel,
          .state_slots = state_slots(config.optimizer),
          .clips_gradients = config.trainer.clip_norm != 0,
          .skips_nonfinite = config.trainer.nonfinite != NonFinitePolicy::ignore};
}

}  // namespace lockstep
