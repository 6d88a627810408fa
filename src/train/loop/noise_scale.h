#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "control/mailbox.h"
#include "program/step_scalars.h"
#include "run/actions.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// The gradient noise scale (McCandlish et al., 2018, "An Empirical Model of Large-Batch Training"): the
/// batch at which the noise of a batch's gradient is as large as the gradient. It follows from mean squared
/// norms of gradients of small batches and of the whole one: for b samples |G_b|² is |G|² + S / b on average.
/// The scale is S / |G|², each averaged over steps before.
class NoiseScaleEstimate {
 public:
  /// `small`: the mean squared norm of gradients of small batches, and the mean of 1 / samples of these.
  /// `large`: the squared norm of the whole batch's gradient. REQUIRES: small batches are smaller.
  void add(double small, double inverse_small_samples, double large, double samples);
  /// Nothing before the first add(), and if noise hides the gradient: no batch is known to be large
  /// enough.
  std::optional<double> value() const;

 private:
  double noise_ = 0, gradient_ = 0, weight_ = 0;
};

struct NoiseScaleOptions {
  int64_t every_steps = 0;                                ///< 0: never
  control::Mailbox* mailbox = nullptr;                    ///< outlives it
  std::function<void(int64_t step, double scale)> write;  ///< on rank 0
};

/// Measures the gradient noise scale of a training. In some steps every worker sums the squares of the
/// gradients of its micro-batches while these are alone in memory, before anything is added to them; rank 0
/// gets the sums as small messages. The program, and so every bit of the training, is as without. REQUIRES:
/// the layout has no sessions. Used by one thread; not COLLECTIVE.
class NoiseScale {
 public:
  /// `worker` must outlive it. REQUIRES: CompiledRun::require_noise() holds.
  NoiseScale(const Worker& worker, NoiseScaleOptions options);

  /// Whether the step that leaves so many complete is measured: then it runs with observe() as its observer.
  /// The same on all ranks.
  bool is_due(int64_t step) const { return options_.every_steps > 0 && step % options_.every_steps == 0; }
  void observe(const run::KernelObservation& observation);
  /// After a measured step. One that was skipped says nothing.
  void end_step(int64_t step, const program::Verdict& verdict, const run::StepScalars& constants,
                bool skipped);
  /// On rank 0: adds what is complete. Waits for what is missing until the deadline.
  void collect(Deadline deadline);
  /// On rank 0: the latest scale.
  std::optional<double> value() const { return estimate_.value(); }

 private:
  /// Of one rank, or of all: squared norms of micro-batches' mean gradients.
  struct Sums {
    double squares = 0;
    double inverse_samples = 0;  ///< sum over micro-batches
    int micro_batches = 0;
  };
  struct Gathered {
    Sums sums;
    int workers = 0;
    double large = 0;  ///< squared norm of the whole batch's gradient
  };

  /// Of a parameter that layers share: the sum of its uses' gradients, in the order in which they are made.
  struct SharedGradient {
    std::vector<float> sum;
    size_t uses = 0;
  };
  /// A micro-batch's gradients, of the whole model or of this stage.
  struct MicroBatch {
    double samples = 0;
    std::map<int, double> squares;         ///< by parameter
    std::map<int, SharedGradient> shared;  ///< by parameter, until its last use was seen
  };
  /// The sum of squared norms of the step's micro-batches' mean gradients, times the scale of the loss; and
  /// forgets them.
  double squares_of_step();
  double samples_of(const program::Instruction& instruction) const;
  const float* on_host(const Tensor& tensor);
  void add(int64_t step, const Sums& sums);

  const Worker& worker_;
  NoiseScaleOptions options_;
  double global_batch_ = 0, static_count_ = 1;
  Sums own_;  ///< what the rank's program says of its micro-batches, without squares
  std::map<int, MicroBatch> micro_batches_;  ///< by number, in the step that runs
  std::vector<float> copy_;
  std::map<int64_t, Gathered> gathered_;  ///< on rank 0, by step
  NoiseScaleEstimate estimate_;
};

}  // namespace lockstep::train
