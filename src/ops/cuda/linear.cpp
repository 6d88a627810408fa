#include "ops/cuda/linear.h"

#include <algorithm>
#include <type_traits>
#include <variant>

#include "ops/cuda/column_sum.h"
#include "ops/cuda/folded_product.h"
#include "ops/cuda/norm_column_sum.h"
#include "ops/cuda/product.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

/// Of a virtual replica.
int64_t rows_of(const TensorSpec& input, const KernelOptions& options) {
  return input.shape.count() / input.shape[-1] * (options.batch / options.virtual_replicas);
}

/// Three products of row-major matrices: x is [rows, in], the weight [units, in], y [rows, units]. A GELU
/// behind or before the op is done to the sums of the first or the second one.
class LinearKernel : public Kernel {
 public:
  LinearKernel(const Linear& op, const TensorSpec& input, const KernelOptions& options)
      : LinearKernel(op, rows_of(input, options),
                     linear_products(op, rows_of(input, options), input.shape[-1], options), options) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    if (phase != KernelPhase::backward_weight) return Product::workspace_bytes();
    // The product and the bias's sums follow each other and share the memory.
    return std::max(weight_gradient_.workspace_bytes(),
                    std::visit([](const auto& sum) { return workspace_of(sum); }, bias_sum_));
  }

  void prepare(device::Device& device) override {
    forward_.prepare(device);
    if (!training_) return;
    input_gradient_.prepare(device);
    weight_gradient_.prepare(device);
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    ProductOperands operands{.a = arguments.inputs[0].data,
                             .b = arguments.parameters[0].data,
                             .c = arguments.outputs[0].data,
                             .bias = has_bias_ ? arguments.parameters[1].data : nullptr};
    if (fused_.gelu_behind) {
      operands.kept = operands.c;
      operands.c = arguments.outputs[1].data;
    }
    forward_.run(operands, arguments.workspace, stream);
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    input_gradient_.run({.a = arguments.output_gradients[0].data,
                         .b = arguments.parameters[0].data,
                         .c = arguments.input_gradients[0].data,
                         .kept = fused_.gelu_before ? arguments.inputs[1].data : nullptr},
                        arguments.workspace, stream);
  }

  void backward_weight(const KernelArguments& arguments, device::Stream& stream) override {
    const void* dy = arguments.output_gradients[0].data;
    weight_gradient_.run({.a = dy,
                          .b = arguments.inputs[0].data,
                          .c = arguments.parameter_gradients[0].data,
                          .accumulate = arguments.accumulate},
                         arguments.workspace, stream);
    // cuBLASLt's epilogues can sum the columns too, but only in the type of the factors, and never onto what
    // is there.
    if (!has_bias_ || arguments.parameter_gradients[1].data == nullptr) return;
    const auto run = [&]<class Sum>(const Sum& sum) {
      if constexpr (!std::is_same_v<Sum, std::monostate>)
        sum.run(dy, arguments.parameter_gradients[1].as<float>(), arguments.accumulate, arguments.workspace,
                stream);
    };
    std::visit(run, bias_sum_);
  }

 private:
  LinearKernel(const Linear& op, int64_t rows, const LinearProducts& products, const KernelOptions& options)
      : training_(options.training),
        has_bias_(op.bias),
        fused_(options.fused),
        forward_(products.forward),
        input_gradient_(products.input_gradient),
        weight_gradient_(products.weight_gradient, options.virtual_replicas) {
    if (!has_bias_) return;
    if (fused_.norm_behind)
      bias_sum_.emplace<NormColumnSum>(rows, op.units, options.compute, options.virtual_replicas);
    else
      bias_sum_.emplace<ColumnSum>(rows, op.units, options.compute, options.virtual_replicas);
  }

  static int64_t workspace_of(std::monostate) { return 0; }
  static int64_t workspace_of(const auto& sum) { return sum.workspace_bytes(); }

  bool training_, has_bias_;
  FusedNeighbors fused_;
  Product forward_, input_gradient_;
  FoldedProduct weight_gradient_;
  std::variant<std::monostate, ColumnSum, NormColumnSum> bias_sum_;  ///< of the bias's gradient, if any
};

}  // namespace

LinearProducts linear_products(const Linear& op, int64_t rows, int64_t in, const KernelOptions& options) {
  return {.forward = {.rows = rows,
                      .columns = op.units,
                      .inner = in,
                      .transpose_b = true,
                      .factors = options.compute,
                      .result = options.compute,
                      .bias = op.bias,
                      .epilogue = options.fused.gelu_behind ? Epilogue::gelu : Epilogue::none,
                      .tf32 = options.tf32,
                      .items = options.virtual_replicas,
                      .shares_b = true,
                      .batchable = options.reproducible},
          .input_gradient = {.rows = rows,
                             .columns = in,
                             .inner = op.units,
                             .factors = options.compute,
                             .result = options.compute,
                             .epilogue = options.fused.gelu_before ? Epilogue::gelu_gradient : Epilogue::none,
                             .tf32 = options.tf32,
                             .items = options.virtual_replicas,
                             .shares_b = true,
                             .batchable = options.reproducible},
          .weight_gradient = {.rows = op.units,
                              .columns = in,
                              .inner = rows,
                              .transpose_a = true,
                              .factors = options.compute,
                              .tf32 = options.tf32,
                              .batchable = options.reproducible}};
}

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Linear& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<LinearKernel>(op, inputs[0], options);
}

}  // namespace lockstep::ops
