#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/host_device.h"
#include "device/device.h"
#include "lockstep/ops.h"
#include "lockstep/tensor.h"

namespace lockstep::ops {

/// How a parameter's initial values are drawn. The numbers depend only on (seed, parameter's name).
struct Initializer {
  enum class Kind { zero, one, normal, uniform } kind = Kind::zero;
  float scale = 0;  ///< normal: standard deviation; uniform: half the width, values in [-scale, scale)
  bool operator==(const Initializer&) const = default;
};

/// weight: trained by the optimizer. statistic: a running mean or variance of batch norm, which follows its
/// tree mean over micro-batches with `momentum`; its "gradient" is the micro-batch's statistic.
enum class ParameterRole { weight, statistic };

struct ParameterSpec {
  std::string name;  ///< within the op: "weight", "bias", ...
  Shape shape;
  Initializer init;
  ParameterRole role = ParameterRole::weight;
  bool is_norm_or_bias = false;  ///< exempt from weight decay if the config says so
  float momentum = 0;            ///< for statistics
  bool narrow = false;           ///< kernels read it in the compute type (KernelOptions), from a rounded copy
  bool operator==(const ParameterSpec&) const = default;
};

/// A tensor that forward leaves for backward besides the op's inputs and outputs.
struct AuxiliarySpec {
  std::string name;
  Shape shape;  ///< per sample if per_sample, otherwise for all samples of a virtual replica
  DType dtype = DType::float32;
  bool per_sample = true;
};

/// split: two calls, which may be far apart, compute gradients of inputs and of parameters.
/// joint: backward_input does both; backward_weight does nothing.
/// none: the op has no parameters; backward_weight does nothing.
enum class BackwardForm { none, split, joint };

/// Which positions of a sample, counted by the first dimension of an op's inputs and outputs, a position of
/// its outputs depends on in evaluation. Only a model whose ops all say more than `any` can be run position
/// by position (infer/).
enum class PositionUse {
  any,      ///< possibly on all, or the first dimension does not count positions
  own,      ///< on its own row of the inputs alone
  place,    ///< on its own row, and on which it is
  earlier,  ///< on its own row, those before it, and which it is
  /// On its own row, and on what the position before it left in outputs and auxiliary tensors: states. These
  /// are kept, and positions are computed in their order.
  previous
};

/// What the graph must know about an op. Shapes are per sample.
struct OpSignature {
  std::vector<TensorSpec> outputs;  ///< empty for losses, which write metrics
  std::vector<ParameterSpec> parameters;
  std::vector<AuxiliarySpec> auxiliary;
  BackwardForm backward = BackwardForm::none;
  std::vector<bool> differentiable;        ///< per input: whether a gradient flows into it (not for int32)
  std::vector<bool> backward_needs_input;  ///< per input: either half of backward reads its value
  bool backward_needs_output = false;      ///< backward reads the output's value
  bool alias = false;  ///< outputs are the input's memory, under other names (fork, reshape)
  bool passes_gradient =
      false;  ///< each input's gradient is the output's, in its memory; backward does nothing (views, add)
  bool elementwise = false;  ///< may be fused after the op that makes its only input
  /// Takes little time for the size of its results, so selective recomputation repeats it.
  bool cheap_to_repeat = false;
  bool is_loss = false;
  PositionUse positions = PositionUse::any;
};

/// The shape rule. Throws ConfigError, which says what was expected and found; the caller adds the layer's
/// name. Types are logical: float32 even if values are stored in a narrower type.
OpSignature infer(const Op& op, std::span<const TensorSpec> inputs);

struct OpCost {
  double forward_flops = 0, backward_input_flops = 0,
         backward_weight_flops = 0;  ///< a multiply-add counts as two
  double forward_bytes = 0, backward_input_bytes = 0,
         backward_weight_bytes = 0;  ///< memory traffic at the least
};
/// The cost for a micro-batch of `batch` samples.
OpCost cost(const Op& op, std::span<const TensorSpec> inputs, int64_t batch);

/// Metrics of a loss op, summed over the samples of a virtual replica in ascending order: float64 each.
enum Metric : int { kLossSum = 0, kCount = 1, kCorrect = 2, kMetricCount = 4 };

/// Numbers of a step that kernels read through a pointer, so that a recorded step can be replayed with new
/// ones.
struct StepConstants {
  uint64_t step = 0;  ///< optimizer step, from 0
  uint64_t seed = 0;
  double loss_scale = 1;  ///< gradients of the loss are multiplied by it
  /// Number of samples of the iteration that count. Losses ignore samples after these, by which an evaluation
  /// fills up its last batch.
  int64_t samples = INT64_MAX;
};

/// The number of samples that count in a micro-batch of `batch` samples.
LOCKSTEP_HOST_DEVICE inline int64_t counted_samples(const StepConstants& constants, int64_t first_sample,
                                                    int64_t batch) {
  const int64_t left = constants.samples - first_sample;
  return left < 0 ? 0 : left < batch ? left : batch;
}

/// The arguments of one kernel call. Tensors are views whose first dimension is the batch; spans follow the
/// op's signature.
struct KernelArguments {
  std::span<const Tensor> inputs;
  std::span<const Tensor> outputs;
  std::span<const Tensor> parameters;
  std::span<const Tensor> auxiliary;
  std::span<const Tensor> output_gradients;  ///< backward: read
  std::span<const Tensor> input_gradients;   ///< backward: overwritten; data null if none is wanted
  /// backward: overwritten or, with `accumulate`, added to; data null if another kernel does that
  std::span<const Tensor> parameter_gradients;
  /// Losses: kMetricCount numbers for each virtual replica, overwritten or added to.
  double* metrics = nullptr;
  bool accumulate = false;
  void* workspace = nullptr;  ///< as many bytes as the kernel's workspace_bytes asks for
  const StepConstants* constants = nullptr;
  int64_t first_sample = 0;  ///< place of the micro-batch's first sample in the global batch
  int64_t first_row = 0;     ///< with KernelOptions::rows: the first position that is computed
};

enum class KernelPhase { forward, backward_input, backward_weight };

/// Work that a GPU kernel does besides its own in the same pass over memory: that of its neighbours in the
/// graph, or of its own backward. CPU kernels do none. In the spans of KernelArguments the neighbours'
/// tensors follow the op's own, or replace them, as stated here.
struct FusedNeighbors {
  /// linear, forward: outputs[1] = gelu(outputs[0]), of the sums before they are rounded.
  bool gelu_behind = false;
  /// linear, backward_input: inputs[1] is the gelu's input, and input_gradients[0] the gradient of that
  /// value, computed from sums before they are rounded. backward_weight is unchanged.
  bool gelu_before = false;
  /// layer_norm and rms_norm, forward: inputs are the two terms of its input, whose sum it writes to
  /// outputs[1]. The bits are those of add.
  bool add_before = false;
  /// softmax_cross_entropy, forward: input_gradients[0] is the logits' gradient, which overwrites the logits.
  /// backward_input has nothing to do. The bits are the same.
  bool gradient_in_forward = false;
  /// layer_norm and rms_norm, backward_input: output_gradients[1] is the gradient of the input's other
  /// reader, input_gradients[0] the sum of both. The bits are those of fork.
  bool fork_before = false;
  /// Activations of one input, layer_norm and rms_norm, backward_input: the last of parameter_gradients, if
  /// there is one more than the op has parameters, is the gradient of the bias of the linear layer whose
  /// output's gradient input_gradients[0] is: the sums of its columns. The bits are those of linear.
  bool bias_before = false;
  /// linear: a norm writes its output's gradient, and the bias's gradient is summed in the order in which
  /// that norm's kernel would sum it, so that it has the same bits whichever of them does.
  bool norm_behind = false;
  bool operator==(const FusedNeighbors&) const = default;
};

/// How kernels of one model are made.
struct KernelOptions {
  int64_t batch = 0;  ///< samples in a micro-batch
  /// Equal parts of the micro-batch, which must not show in each other's results: gradients of parameters are
  /// summed within each, and these sums along the canonical tree (layout/canonical_tree.h). Batch norm's
  /// statistics are those of a part. GPUs: of 8 samples or more.
  int virtual_replicas = 1;
  bool training = true;      ///< false: evaluation (dropout off, running statistics)
  int intra_op_threads = 1;  ///< no bit depends on it
  double loss_weight = 1;    ///< losses: gradient of the summed loss is multiplied by it (1 / global count)
  uint32_t op_number = 0;    ///< the op's place in the graph: key of its random stream
  DType compute = DType::float32;  ///< type of activations, their gradients and narrow parameters
  bool tf32 = false;               ///< GPUs: products of float32 tensors may round their factors to TF32
  /// GPUs: products take algorithms that can compute several virtual replicas at once, even if there is
  /// one, so that bits do not depend on how many there are.
  bool reproducible = false;
  FusedNeighbors fused;      ///< GPUs
  int64_t column_bytes = 0;  ///< convolutions on GPUs: columns made at once; 0: the library's choice
  /// CPUs, evaluation, ops with PositionUse::place, earlier or previous: so many positions of each sample are
  /// computed in a call, to the same bits; 0: all. Tensors are of whole samples.
  int64_t rows = 0;
};

/// An op bound to shapes and options for a kind of device. Making it and asking for its workspace needs no
/// device, so that memory can be planned anywhere. prepare() makes what needs a device, such as libraries'
/// descriptors. Thread-safety: one call at a time.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual int64_t workspace_bytes(KernelPhase) const { return 0; }
  virtual void prepare(device::Device&) {}  ///< once, before the first call below
  virtual void forward(const KernelArguments& arguments, device::Stream& stream) = 0;
  virtual void backward_input(const KernelArguments&, device::Stream&) {}
  virtual void backward_weight(const KernelArguments&, device::Stream&) {}
};

/// `inputs`: those of the shape rule, float32 for any `options.compute`. Tensors of calls have the type in
/// which they are stored. Throws DeviceError if the device's kind has no kernel for the op.
std::unique_ptr<Kernel> make_kernel(device::DeviceKind device, const Op& op,
                                    std::span<const TensorSpec> inputs, const KernelOptions& options);

/// The kernel of the GPU backend that the program is linked to. Throws DeviceError if there is none.
std::unique_ptr<Kernel> make_cuda_kernel(const Op& op, std::span<const TensorSpec> inputs,
                                         const KernelOptions& options);

/// The alternatives of `Op`, in their order. The config's reader and the tests iterate over them.
struct OpTableRow {
  std::string_view name;
  Op (*make)();       ///< with default options
  bool user_visible;  ///< false for ops that only the graph inserts
};
std::span<const OpTableRow> op_table();

}  // namespace lockstep::ops
