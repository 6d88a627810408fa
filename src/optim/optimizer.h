#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/matrix_size.h"
#include "device/device.h"
#include "lockstep/tensor.h"

namespace lockstep::optim {

enum class OptimizerKind { sgd, adam, adamw, lars, lamb, muon };

/// By what muon multiplies an orthogonal update. spectral: sqrt(max(1, rows / columns)). match_adamw: 0.2
/// sqrt(max(rows, columns)), with which elements of updates are about as large as AdamW's (Liu et al., 2025,
/// "Muon is Scalable for LLM Training").
enum class MatrixScale { spectral, match_adamw };

/// An exponential moving average of the weights: state that each update moves after it has written the
/// weights.
struct AverageOptions {
  bool enabled = false;
  double decay = 0.999;    ///< share of the average that an update keeps
  int64_t start_step = 0;  ///< updates up to which the average is the weights themselves; the first always is
  bool operator==(const AverageOptions&) const = default;
};

/// Limits the gradient of each parameter by the parameter's own norm: Brock et al., 2021, "High-Performance
/// Large-Scale Image Recognition Without Normalization", with one norm for a whole parameter.
struct AdaptiveClipOptions {
  double limit = 0;     ///< largest ratio of the gradient's norm to the parameter's; 0: no clipping
  double floor = 1e-3;  ///< least norm of a parameter
  bool operator==(const AdaptiveClipOptions&) const = default;
};

/// The schema of configs checks the values. Kernels take it by value.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::sgd;
  double learning_rate = 0.01;                        ///< peak, before the schedule
  double momentum = 0;                                ///< sgd, lars, muon
  bool nesterov = false;                              ///< sgd, which then needs momentum; muon
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  ///< adam, adamw, lamb; epsilon: lars, too
                                                      ///< muon: of AdamW, for what is no matrix
  /// sgd, adam: added to the gradient; adamw, muon: decoupled; lars, lamb: a part of what ratios scale
  double weight_decay = 0;
  bool decay_norm_and_bias =
      false;  ///< whether weight decay also applies to biases and normalisation parameters
  AverageOptions average;
  double trust = 0.001;               ///< lars: the ratio of an update's norm to the parameter's, at rate 1
  bool adapts_without_decay = false;  ///< lamb: also parameters whose weight decay is 0 have a ratio
  AdaptiveClipOptions adaptive_clip;
  int newton_schulz_steps = 5;  ///< muon
  MatrixScale matrix_scale = MatrixScale::spectral;
  bool operator==(const OptimizerOptions&) const = default;
};

/// What updates of a parameter take besides what all parameters share.
struct ParameterRates {
  double weight_decay = 0;
  double learning_rate_factor = 1;
  bool clips = true;  ///< OptimizerOptions::adaptive_clip applies
  /// Of a parameter that was frozen at first: the training's updates before its own first one. Adam's
  /// correction counts those after them, as that of PyTorch, which counts each parameter's own.
  uint32_t updates_before = 0;
  MatrixSize matrix = {};  ///< as which muon updates it; none: AdamW does, element by element
  bool operator==(const ParameterRates&) const = default;
};

/// The rates of parameters in groups (`optimizer.groups`), by name; with muon, of all that learn.
using GroupRates = std::map<std::string, ParameterRates, std::less<>>;

/// The rates of a parameter: its group's, or those that the optimizer states.
ParameterRates rates_of(const OptimizerOptions& options, const GroupRates& groups, std::string_view parameter,
                        bool is_norm_or_bias);

/// Whether updates of parameters are scaled by norms of their own (scale_of() in formulas.h), so that these
/// must be known before.
bool measures_parameters(const OptimizerOptions& options);
/// The first slots of state from which a parameter's update follows, if its own norm must be known, too; 0:
/// it need not.
int proposed_slots(const OptimizerOptions& options);

/// Whether a parameter's update is scaled by its norms, or always by 1.
bool is_scaled(const OptimizerOptions& options, const ParameterRates& rates, bool is_norm_or_bias);

/// The share of the weights in their average after an update, the `updates`th of the training from 1:
/// PyTorch's AveragedModel. 1: the average is the weights.
float average_gain(const AverageOptions& options, int64_t updates);

/// Numbers of float32 state per parameter element: 0 (sgd), 1 (sgd with momentum, lars), 2 (adam, adamw,
/// lamb, muon), and 1 more for the average. Of what muon updates as matrices nobody reads the second.
int state_slots(const OptimizerOptions& options);
inline constexpr int kMostStateSlots = 3;
/// "momentum", "velocity" (LARS), "exp_avg", "exp_avg_sq"; the average is the last slot, "ema". Of what muon
/// updates as this matrix: "muon_mean", "muon_unused".
std::string_view state_slot_name(const OptimizerOptions& options, int slot, const MatrixSize& matrix = {});

/// Per-step numbers that updates read through a pointer, as kernels of ops read ops::StepConstants.
struct UpdateConstants {
  double learning_rate = 0;
  double beta1_power = 1, beta2_power = 1;  ///< beta^(updates, with this one), for Adam
  float average_gain = 1;                   ///< of the average
  uint32_t updates = 1;                     ///< of the training, with this one; at most its largest value
};

/// Copies of elements in a narrower type, bfloat16 or float16, each rounded to nearest, ties to even.
struct NarrowCopy {
  void* data = nullptr;  ///< null: none is wanted
  DType dtype = DType::bfloat16;

  /// The copy from an element on.
  NarrowCopy from(int64_t element) const {
    return {data == nullptr ? nullptr : static_cast<std::byte*>(data) + element * size_of(dtype), dtype};
  }
  /// Copies `count` elements.
  void write(const float* values, int64_t count) const;
};

/// One contiguous range of one parameter.
struct UpdateArguments {
  float* parameters = nullptr;
  NarrowCopy copy = {};                ///< of what it writes to `parameters`
  const float* gradients = nullptr;    ///< summed over the global batch, already a mean
  float* state[kMostStateSlots] = {};  ///< one per slot
  int64_t count = 0;                   ///< elements
  ParameterRates rates;
  double gradient_scale = 1;  ///< clipping, loss scale and the ratio of counts; applied first
  double scale = 1;           ///< of lars and lamb: the ratio by which the parameter's rate is multiplied
};

/// Applies one optimizer step elementwise, by work launched on `stream`, which reads `constants` when it
/// runs, on up to `threads` threads. A pure function of its arguments for each element, so that any split of
/// a parameter gives the same bits. PyTorch's formulas: SGD (dampening 0), Adam, AdamW. LAMB's state must
/// have moved before.
void update(const OptimizerOptions& options, const UpdateArguments& arguments,
            const UpdateConstants& constants, device::Stream& stream, int threads = 1);

/// Muon's update of a whole matrix, in two parts: between them ops::Orthogonalizer makes the direction
/// orthogonal. The first moves the mean of gradients, state[0], and writes the direction to `parameters`, in
/// place of the parameters.
void make_direction(const OptimizerOptions& options, const UpdateArguments& arguments,
                    const UpdateConstants& constants, device::Stream& stream, int threads = 1);
/// The second: `gradients` is the orthogonal direction, and state[0] the average, if there is one.
void follow_direction(const OptimizerOptions& options, const UpdateArguments& arguments,
                      const UpdateConstants& constants, device::Stream& stream, int threads = 1);

struct LambDirection;
/// Moves LAMB's state, and writes the direction of the update that follows from it, of each element.
void propose(const LambDirection& formula, const float* parameters, const float* gradients, float* mean,
             float* square, float* direction, int64_t count);

/// Statistic parameters (see ParameterRole): value += momentum * (mean - value), mean = gradients *
/// gradient_scale.
void update_statistic(float* values, const NarrowCopy& copy, const float* gradients, int64_t count,
                      float momentum, double gradient_scale, device::Stream& stream);

}  // namespace lockstep::optim
