#include "ops/cpu/columns.h"
#include "ops/cpu/onednn.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

using Format = dnnl::memory::format_tag;

/// Three products of row-major matrices: x is [rows, in], the weight [units, in], y [rows, units].
class LinearKernel : public Kernel {
 public:
  LinearKernel(const Linear& op, const TensorSpec& input, const KernelOptions& options)
      : bias_(op.bias),
        threads_(options.intra_op_threads),
        bias_blocks_(input.shape.count() / input.shape[-1] * options.batch, op.units),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_) {
    const IntraOpThreads scope(threads_);
    const int64_t rows = bias_blocks_.rows, units = op.units, in = input.shape[-1];
    make_onednn(fmt::format("a linear op of {} rows, {} inputs, {} units", rows, in, units), [&] {
      const auto x = onednn_desc({rows, in}, Format::ab), y = onednn_desc({rows, units}, Format::ab);
      const auto bias = bias_ ? onednn_desc({1, units}, Format::ab) : dnnl::memory::desc();
      // Format ba reads a row-major matrix as its transpose.
      forward_ = make(x, onednn_desc({in, units}, Format::ba), bias, y, false, forward_bytes_);
      if (!options.training) return;
      const auto weight = onednn_desc({units, in}, Format::ab),
                 transposed_y = onednn_desc({units, rows}, Format::ba);
      input_gradient_ = make(y, weight, {}, x, false, input_bytes_);
      int64_t accumulating_bytes = 0;
      weight_gradient_[0] = make(transposed_y, x, {}, weight, false, weight_bytes_);
      weight_gradient_[1] = make(transposed_y, x, {}, weight, true, accumulating_bytes);
      weight_bytes_ = std::max(weight_bytes_, accumulating_bytes);
    });
  }

  int64_t workspace_bytes(KernelPhase phase) const override {
    switch (phase) {
      case KernelPhase::forward:
        return forward_bytes_;
      case KernelPhase::backward_input:
        return input_bytes_;
      case KernelPhase::backward_weight:
        break;
    }
    // The product and the bias's sums follow each other and share the memory.
    const int64_t bias_bytes =
        bias_ ? column_sums_scratch(bias_blocks_) * static_cast<int64_t>(sizeof(float)) : 0;
    return std::max(weight_bytes_, bias_bytes);
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([this, x = arguments.inputs[0].data, weight = arguments.parameters[0].data,
                   bias = bias_ ? arguments.parameters[1].data : nullptr, y = arguments.outputs[0].data,
                   workspace = arguments.workspace] { run(forward_, x, weight, bias, y, workspace); });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([this, dy = arguments.output_gradients[0].data, weight = arguments.parameters[0].data,
                   dx = arguments.input_gradients[0].data, workspace = arguments.workspace] {
      run(input_gradient_, dy, weight, nullptr, dx, workspace);
    });
  }

  void backward_weight(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([this, dy = arguments.output_gradients[0].data, x = arguments.inputs[0].data,
                   dweight = arguments.parameter_gradients[0].data,
                   dbias = bias_ ? arguments.parameter_gradients[1].as<float>() : nullptr,
                   accumulate = arguments.accumulate, workspace = arguments.workspace] {
      run(weight_gradient_[accumulate], dy, x, nullptr, dweight, workspace);
      if (dbias != nullptr)
        column_sums(static_cast<const float*>(dy), bias_blocks_, dbias, accumulate,
                    static_cast<float*>(workspace), threads_);
    });
  }

 private:
  OneDnnCall make(const dnnl::memory::desc& a, const dnnl::memory::desc& b, const dnnl::memory::desc& bias,
                  const dnnl::memory::desc& c, bool add_to_c, int64_t& scratch_bytes) {
    const auto desc = bias.is_zero() ? dnnl::matmul::desc(a, b, c) : dnnl::matmul::desc(a, b, bias, c);
    const dnnl::matmul::primitive_desc primitive(desc, onednn_attributes(add_to_c), engine_);
    scratch_bytes = static_cast<int64_t>(primitive.scratchpad_desc().get_size());
    return OneDnnCall(dnnl::matmul(primitive), engine_,
                      {{DNNL_ARG_SRC, a},
                       {DNNL_ARG_WEIGHTS, b},
                       {DNNL_ARG_BIAS, bias},
                       {DNNL_ARG_DST, c},
                       {DNNL_ARG_SCRATCHPAD, primitive.scratchpad_desc()}});
  }

  void run(OneDnnCall& call, const void* a, const void* b, const void* bias, void* c, void* workspace) {
    const IntraOpThreads scope(threads_);
    call.run(stream_, {{DNNL_ARG_SRC, a},
                       {DNNL_ARG_WEIGHTS, b},
                       {DNNL_ARG_BIAS, bias},
                       {DNNL_ARG_DST, c},
                       {DNNL_ARG_SCRATCHPAD, workspace}});
  }

  bool bias_;
  int threads_;
  ColumnBlocks bias_blocks_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  OneDnnCall forward_, input_gradient_, weight_gradient_[2];  // [1] adds to the gradient
  int64_t forward_bytes_ = 0, input_bytes_ = 0, weight_bytes_ = 0;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Linear& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<LinearKernel>(op, inputs[0], options);
}

}  // namespace lockstep::ops
