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

/// How a parameter's first values are drawn. The numbers depend on (seed, parameter's name) only.
struct Initializer {
  enum class Kind { zero, one, normal, uniform } kind = Kind::zero;
  float scale = 0;  ///< normal: standard deviation; uniform: half the width, values in [-scale, scale)
  bool operator==(const Initializer&) const = default;
};

/// weight: trained by the optimizer. statistic: follows its tree mean over micro-batches with `momentum`
/// (running mean and variance of batch norm): its "gradient" is the micro-batch's statistic.
enum class ParameterRole { weight, statistic };

struct ParameterSpec {
  std::string name;  ///< within the op: "weight", "bias", ...
  Shape shape;
  Initializer init;
  ParameterRole role = ParameterRole::weight;
  bool is_norm_or_bias = false;  ///< exempt from weight decay where the config says so
  float momentum = 0;            ///< for statistics
  bool narrow = false;           ///< kernels read it in the compute type (KernelOptions), from a rounded copy
  bool operator==(const ParameterSpec&) const = default;
};

/// A tensor that forward leaves for backward besides the op's inputs and outputs.
struct AuxiliarySpec {
  std::string name;
  Shape shape;  ///< per sample where per_sample, otherwise for the whole micro-batch
  DType dtype = DType::float32;
  bool per_sample = true;
};

/// split: gradients of inputs and of parameters are computed by two calls that may be far apart.
/// joint: backward_input does both; backward_weight does nothing.
/// none: the op has no parameters; backward_weight does nothing.
enum class BackwardForm { none, split, joint };

/// What the graph has to know about an op. Shapes are per sample.
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
  bool elementwise = false;  ///< may be fused behind the op that makes its only input
  /// Takes little time for the memory of what it makes: selective recomputation computes it again.
  bool cheap_to_repeat = false;
  bool is_loss = false;
};

/// The shape rule. Throws ConfigError saying what was expected and found; the caller adds the layer's name.
/// It speaks of what numbers mean: float32 also where they are stored in a narrower type.
OpSignature infer(const Op& op, std::span<const TensorSpec> inputs);

struct OpCost {
  double forward_flops = 0, backward_input_flops = 0,
         backward_weight_flops = 0;  ///< a multiply-add counts as two
  double forward_bytes = 0, backward_input_bytes = 0,
         backward_weight_bytes = 0;  ///< memory traffic at the least
};
/// For a micro-batch of `batch` samples.
OpCost cost(const Op& op, std::span<const TensorSpec> inputs, int64_t batch);

/// Metrics of a loss op, summed over the samples of a leaf in ascending order: float64 each.
enum Metric : int { kLossSum = 0, kCount = 1, kCorrect = 2, kMetricCount = 4 };

/// Per-step numbers that kernels read through a pointer, so that a recorded step can be replayed with new
/// ones.
struct StepConstants {
  uint64_t step = 0;  ///< optimizer step, from 0
  uint64_t seed = 0;
  double loss_scale = 1;  ///< gradients of the loss are multiplied by it
  /// Of the iteration, from its first: the forward pass of losses leaves out those after them, with which an
  /// evaluation fills its last batch.
  int64_t samples = INT64_MAX;
};

/// How many of a micro-batch of `batch` samples count.
LOCKSTEP_HOST_DEVICE inline int64_t counted_samples(const StepConstants& constants, int64_t first_sample,
                                                    int64_t batch) {
  const int64_t left = constants.samples - first_sample;
  return left < 0 ? 0 : left < batch ? left : batch;
}

/// What a kernel works on in one call. Tensors are views with the batch in front; spans follow the op's
/// signature.
struct KernelArguments {
  std::span<const Tensor> inputs;
  std::span<const Tensor> outputs;
  std::span<const Tensor> parameters;
  std::span<const Tensor> auxiliary;
  std::span<const Tensor> output_gradients;     ///< backward: read
  std::span<const Tensor> input_gradients;      ///< backward: overwritten; data null if none is wanted
  std::span<const Tensor> parameter_gradients;  ///< backward: overwritten or, with `accumulate`, added to
  double* metrics = nullptr;                    ///< losses: kMetricCount numbers, overwritten or added to
  bool accumulate = false;
  void* workspace = nullptr;  ///< as many bytes as the kernel's workspace_bytes asks for
  const StepConstants* constants = nullptr;
  int64_t first_sample = 0;  ///< place of the micro-batch's first sample in the global batch
};

enum class KernelPhase { forward, backward_input, backward_weight };

/// What a kernel does beside its own work in the same pass over memory: that of its neighbours in the graph,
/// or of its own backward; kernels of CPUs do none. Tensors of the neighbours follow the op's own in the
/// spans of KernelArguments, or replace them, as said here.
struct FusedNeighbors {
  /// linear, forward: outputs[1] = gelu(outputs[0]), of the sums before they are rounded.
  bool gelu_behind = false;
  /// linear, backward_input: inputs[1] is what the gelu has read, and input_gradients[0] that value's
  /// gradient: of the sums before they are rounded. backward_weight is as ever.
  bool gelu_before = false;
  /// layer_norm, forward: inputs are the two terms of its input, which it writes to outputs[1]. Equal bits to
  /// add's.
  bool add_before = false;
  /// softmax_cross_entropy, forward: input_gradients[0] is the logits' gradient, which takes their place.
  /// Nothing is left for backward_input. Equal bits.
  bool gradient_in_forward = false;
  /// layer_norm, backward_input: output_gradients[1] is the other reader's of its input, input_gradients[0]
  /// the sum of both. Equal bits to fork's.
  bool fork_before = false;
  bool operator==(const FusedNeighbors&) const = default;
};

/// How kernels of one model are made.
struct KernelOptions {
  int64_t batch = 0;         ///< samples in a micro-batch
  bool training = true;      ///< false: evaluation (dropout off, running statistics)
  int intra_op_threads = 1;  ///< part of the arithmetic: bits may depend on it
  double loss_weight = 1;    ///< losses: gradient of the summed loss is multiplied by it (1 / global count)
  uint32_t op_number = 0;    ///< the op's place in the graph: key of its random stream
  DType compute = DType::float32;  ///< how activations, their gradients and narrow parameters are stored
  bool tf32 = false;               ///< GPUs: products of float32 tensors may round their factors to TF32
  FusedNeighbors fused;            ///< GPUs
  int64_t column_bytes =
      0;  ///< convolutions on GPUs: columns that are made at once; 0: as many as suit the library
};

/// An op bound to shapes and options for a kind of device. Making it and asking for its workspace needs no
/// device, so that memory is planned anywhere; prepare() makes what needs one, such as libraries'
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

/// `inputs` are those of the shape rule, float32 whatever `options.compute` says; tensors of calls have the
/// type in which they are stored. Throws DeviceError if the device's kind has no kernel for the op.
std::unique_ptr<Kernel> make_kernel(device::DeviceKind device, const Op& op,
                                    std::span<const TensorSpec> inputs, const KernelOptions& options);

/// That of the GPU backend which the program is linked to; DeviceError where that is none.
std::unique_ptr<Kernel> make_cuda_kernel(const Op& op, std::span<const TensorSpec> inputs,
                                         const KernelOptions& options);

/// The alternatives of `Op`, in their order: what the config's reader and the tests iterate.
struct OpTableRow {
  std::string_view name;
  Op (*make)();       ///< with default options
  bool user_visible;  ///< false for ops that only the graph puts in
};
std::span<const OpTableRow> op_table();

}  // namespace lockstep::ops
