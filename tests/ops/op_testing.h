#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/op.h"

namespace lockstep::testing {

/// A tensor's values in double precision, whatever its element type; the shape includes the batch.
struct Array {
  Shape shape;
  std::vector<double> values;
  DType dtype = DType::float32;
};

/// The op in double precision: inputs and parameters (in the signature's order) to outputs. A loss returns
/// one array with one value: its sum over the micro-batch, without loss_weight and loss_scale.
using Reference =
    std::function<std::vector<Array>(const std::vector<Array>& inputs, const std::vector<Array>& parameters)>;

/// One configuration of an op for the suite in op_suite_test.cpp, which fills float32 inputs, weights and
/// output gradients with numbers in [-1, 1), statistics with numbers in [0.5, 1.5), int32 inputs with [0,
/// int32_below).
struct OpCase {
  std::string name;  ///< of the case; the op's own name goes before it
  Op op;
  std::vector<TensorSpec> inputs;  ///< per sample
  int64_t batch = 2;
  Reference reference;
  ops::KernelOptions options{};  ///< `batch` is filled in from above
  ops::StepConstants constants{};
  int64_t first_sample = 0;
  int64_t int32_below = 1;
  double tolerance = 1e-5;  ///< relative to the largest value of a tensor, or to 1 where that is larger
  std::function<void(std::vector<Array>& inputs)> prepare;  ///< optional: edits the random inputs
};
inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.name; }

/// What kernels are tested on unless a test says otherwise: each program links tested_cpu.cpp or
/// tested_gpu.cpp.
device::DeviceKind tested_device();

/// A kernel of one op with memory for everything it touches. Memory starts as NaN (integers: a large negative
/// number), so that what is read before it is written shows; every tensor and the workspace are followed by
/// guard words, which each call checks. Outputs of alias ops are their input's memory, and so are the
/// gradients where there is one output.
///
/// Tests read and write tensors on the host. Where the device has memory of its own, each call copies
/// everything there, and back.
class OpHarness {
 public:
  /// REQUIRES: options.batch is set.
  OpHarness(const Op& op, std::vector<TensorSpec> inputs, const ops::KernelOptions& options,
            device::DeviceKind device = tested_device());
  ~OpHarness();

  const ops::OpSignature& signature() const { return signature_; }

  // In the signature's order; shapes include the batch. A null data in input_gradients means: not wanted.
  std::vector<Tensor> inputs, outputs, parameters, auxiliary;
  std::vector<Tensor> output_gradients, input_gradients, parameter_gradients;
  static constexpr int kMostReplicas = 7;
  double metrics[kMostReplicas * ops::kMetricCount];  ///< of each virtual replica
  ops::StepConstants constants;
  int64_t first_sample = 0;

  void forward(bool accumulate = false) { call(ops::KernelPhase::forward, accumulate); }
  void backward_input(bool accumulate = false) { call(ops::KernelPhase::backward_input, accumulate); }
  void backward_weight(bool accumulate = false) { call(ops::KernelPhase::backward_weight, accumulate); }
  /// Both halves of backward in their usual order.
  void backward(bool accumulate = false) {
    backward_input(accumulate);
    backward_weight(accumulate);
  }

  int parameter_index(const std::string& name) const;  ///< throws InternalError where there is none

  /// A tensor for neighbours whose work the kernel does too (FusedNeighbors); the test puts it into a list
  /// above. `spec` says what is stored, with the batch.
  Tensor make(const TensorSpec& spec);

 private:
  struct Block;
  void call(ops::KernelPhase phase, bool accumulate);
  void* on_device(void* data) const;

  ops::OpSignature signature_;
  std::unique_ptr<device::Device> host_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<ops::Kernel> kernel_;
  std::vector<Block> blocks_;
};

/// Writes `values` (as many as the tensor has elements), rounded to its element type.
void fill(const Tensor& tensor, const std::vector<double>& values);
void fill(const Tensor& tensor, double value);
/// Overwrites with NaN, or a large negative integer.
void poison(const Tensor& tensor);
std::vector<double> values_of(const Tensor& tensor);
Array array_of(const Tensor& tensor);
std::vector<std::vector<double>> values_of_all(const std::vector<Tensor>& tensors);  ///< without null ones
/// Everything that one forward and backward pass writes: outputs or metrics, then gradients of inputs and of
/// parameters.
std::vector<std::vector<double>> results_of(OpHarness& harness);

/// `count` numbers in [low, high), each exact in float32, decided by `stream` alone.
std::vector<double> random_values(int64_t count, uint32_t stream, double low = -1, double high = 1);

/// GoogleTest failure where any value is further from `expected` than tolerance * max(1, largest |expected|),
/// or not finite; `what` names the tensor.
void expect_near(const std::vector<double>& actual, const std::vector<double>& expected, double tolerance,
                 const std::string& what);

/// Fills inputs, parameters and output gradients of `harness` as OpCase says and returns a harness ready to
/// run.
std::unique_ptr<OpHarness> make_harness(const OpCase& c, device::DeviceKind device = tested_device());

/// Central differences in double precision of sum(output gradients * reference outputs), or for a loss of
/// loss_weight * loss_scale * reference, at up to 64 elements of each tensor.
struct Difference {
  std::string tensor;  ///< "input 0", "parameter weight"
  Tensor gradient;     ///< of the harness
  std::vector<int64_t> elements;
  std::vector<double> values;
};
std::vector<Difference> finite_differences(const OpCase& c, const OpHarness& harness);

/// goldens/<op>.txt, written by scripts/make_goldens.py: case -> tensor -> values. Tensors are named
/// input<i>, <parameter>, output<i>; "gradient of " before such a name is its gradient.
using Golden = std::map<std::string, Array>;
Golden read_golden(const std::string& op, const std::string& case_name);
/// Runs forward and backward with the golden's inputs, parameters and output gradients and compares
/// everything that the golden has of outputs and gradients.
void expect_matches_golden(const Op& op, const Golden& golden, ops::KernelOptions options = {},
                           double tolerance = 1e-5);

}  // namespace lockstep::testing
