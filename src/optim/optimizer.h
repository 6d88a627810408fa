#pragma once

#include <cstdint>
#include <string_view>

#include "device/device.h"

namespace lockstep::optim {

enum class OptimizerKind { sgd, adam, adamw };

/// The schema of configs checks the values.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::sgd;
  double learning_rate = 0.01;                        ///< peak, before the schedule
  double momentum = 0;                                ///< sgd
  bool nesterov = false;                              ///< sgd; needs momentum
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  ///< adam, adamw
  double weight_decay = 0;                            ///< sgd, adam: added to the gradient; adamw: decoupled
  bool decay_norm_and_bias =
      false;  ///< whether weight decay also applies to biases and normalisation parameters
  bool operator==(const OptimizerOptions&) const = default;
};

enum class ScheduleKind { constant, cosine };

/// Learning rate over optimizer steps: linear warm-up from learning_rate / warmup_steps to learning_rate,
/// then constant, or a half cosine from learning_rate at step warmup_steps down to minimum at the last step.
struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::constant;
  int64_t warmup_steps = 0;
  double minimum = 0;  ///< cosine: learning rate at the end
  bool operator==(const ScheduleOptions&) const = default;
};

/// The learning rate of optimizer step `step`, from 0. The warm-up counts steps. After it, `shift` is added
/// to the number of steps so far, because they had larger or smaller batches. REQUIRES: 0 <= step <
/// total_steps.
double learning_rate_at(const OptimizerOptions& optimizer, const ScheduleOptions& schedule, int64_t step,
                        int64_t total_steps, double shift = 0);

/// Numbers of float32 state per parameter element: 0 (sgd), 1 (sgd with momentum), 2 (adam, adamw).
int state_slots(const OptimizerOptions& options);
std::string_view state_slot_name(const OptimizerOptions& options,
                                 int slot);  ///< "momentum", "exp_avg", "exp_avg_sq"

/// Per-step numbers that updates read through a pointer, as kernels of ops read ops::StepConstants.
struct UpdateConstants {
  double learning_rate = 0;
  double beta1_power = 1, beta2_power = 1;  ///< beta^(updates, with this one), for Adam
};

/// One contiguous range of one parameter.
struct UpdateArguments {
  float* parameters = nullptr;
  const float* gradients = nullptr;      ///< summed over the global batch, already a mean
  float* state[2] = {nullptr, nullptr};  ///< one per slot
  int64_t count = 0;                     ///< elements
  bool decay = true;                     ///< this parameter takes weight decay
  double gradient_scale = 1;             ///< clipping, loss scale and the ratio of counts; applied first
};

/// Applies one optimizer step elementwise, by work launched on `stream`, which reads `constants` when it
/// runs, on up to `threads` threads. A pure function of its arguments for each element, so that any split of
/// a parameter gives the same bits. PyTorch's formulas: SGD (dampening 0), Adam, AdamW.
void update(const OptimizerOptions& options, const UpdateArguments& arguments,
            const UpdateConstants& constants, device::Stream& stream, int threads = 1);

/// Statistic parameters (see ParameterRole): value += momentum * (mean - value), mean = gradients *
/// gradient_scale.
void update_statistic(float* values, const float* gradients, int64_t count, float momentum,
                      double gradient_scale, device::Stream& stream);

}  // namespace lockstep::optim
