#include "base/ensure.h"
#include "ops/checks.h"
#include "ops/cpu/columns.h"
#include "ops/cpu/onednn.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

using Desc = dnnl::memory::desc;
using Format = dnnl::memory::format_tag;

constexpr int64_t kAlignment = 64;
int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// A primitive, the weight layout it wants, and its share of the workspace: [weight in that layout][scratch].
struct Part {
  OneDnnCall call;
  Desc weight;
  bool reordered = false;  // the layout is not the parameter's own
  int64_t scratch_bytes = 0;

  int64_t weight_bytes() const { return reordered ? aligned(static_cast<int64_t>(weight.get_size())) : 0; }
  int64_t bytes() const { return weight_bytes() + scratch_bytes; }
};

/// Activations stay in NHWC. On the parameter's own weight layout oneDNN only has its reference loops, a
/// hundred times slower, so weights are reordered in the workspace; for 64 -> 64 channels 3x3 that takes 9 µs
/// beside 13 ms.
class Conv2dKernel : public Kernel {
 public:
  Conv2dKernel(const Conv2d& op, const TensorSpec& input, const KernelOptions& options)
      : bias_(op.bias),
        threads_(options.intra_op_threads),
        output_(window_output(op.kName, input.shape, op.kernel, op.stride, op.padding, op.channels)),
        bias_blocks_(output_[0] * output_[1] * options.batch, op.channels),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_) {
    const IntraOpThreads scope(threads_);
    make_onednn(
        fmt::format("a conv2d of input {}, {} channels, kernel {}, stride {}, padding {}, batch {}",
                    input.shape.to_string(), op.channels, op.kernel, op.stride, op.padding, options.batch),
        [&] { make_parts(op, input.shape, options); });
  }

  int64_t workspace_bytes(KernelPhase phase) const override {
    switch (phase) {
      case KernelPhase::forward:
        return forward_.bytes();
      case KernelPhase::backward_input:
        return input_gradient_.bytes();
      case KernelPhase::backward_weight:
        break;
    }
    // The convolution and the bias's sums follow each other and share the memory.
    const int64_t bias_bytes =
        bias_ ? column_sums_scratch(bias_blocks_) * static_cast<int64_t>(sizeof(float)) : 0;
    return std::max(weight_gradient_.bytes(), bias_bytes);
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([this, x = arguments.inputs[0].data, weight = arguments.parameters[0].data,
                   bias = bias_ ? arguments.parameters[1].data : nullptr, y = arguments.outputs[0].data,
                   workspace = static_cast<std::byte*>(arguments.workspace)] {
      const IntraOpThreads scope(threads_);
      forward_.call.run(stream_, {{DNNL_ARG_SRC, x},
                                  {DNNL_ARG_WEIGHTS, weight_for(forward_, to_forward_, weight, workspace)},
                                  {DNNL_ARG_BIAS, bias},
                                  {DNNL_ARG_DST, y},
                                  {DNNL_ARG_SCRATCHPAD, workspace + forward_.weight_bytes()}});
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([this, dy = arguments.output_gradients[0].data, weight = arguments.parameters[0].data,
                   dx = arguments.input_gradients[0].data,
                   workspace = static_cast<std::byte*>(arguments.workspace)] {
      const IntraOpThreads scope(threads_);
      input_gradient_.call.run(
          stream_, {{DNNL_ARG_DIFF_DST, dy},
                    {DNNL_ARG_WEIGHTS, weight_for(input_gradient_, to_input_gradient_, weight, workspace)},
                    {DNNL_ARG_DIFF_SRC, dx},
                    {DNNL_ARG_SCRATCHPAD, workspace + input_gradient_.weight_bytes()}});
    });
  }

  void backward_weight(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([this, dy = arguments.output_gradients[0].data, x = arguments.inputs[0].data,
                   dweight = arguments.parameter_gradients[0].data,
                   dbias = bias_ ? arguments.parameter_gradients[1].as<float>() : nullptr,
                   accumulate = arguments.accumulate,
                   workspace = static_cast<std::byte*>(arguments.workspace)] {
      const IntraOpThreads scope(threads_);
      weight_gradient_.call.run(stream_,
                                {{DNNL_ARG_SRC, x},
                                 {DNNL_ARG_DIFF_DST, dy},
                                 {DNNL_ARG_DIFF_WEIGHTS, workspace},
                                 {DNNL_ARG_SCRATCHPAD, workspace + weight_gradient_.weight_bytes()}});
      from_weight_gradient_[accumulate].run(stream_, {{DNNL_ARG_FROM, workspace}, {DNNL_ARG_TO, dweight}});
      if (dbias != nullptr)
        column_sums(static_cast<const float*>(dy), bias_blocks_, dbias, accumulate,
                    reinterpret_cast<float*>(workspace), threads_);
    });
  }

 private:
  void make_parts(const Conv2d& op, const Shape& image, const KernelOptions& options) {
    const auto algorithm = dnnl::algorithm::convolution_direct;
    const Desc x = onednn_desc({options.batch, image[2], image[0], image[1]}, Format::nhwc);
    const Desc y = onednn_desc({options.batch, op.channels, output_[0], output_[1]}, Format::nhwc);
    const dnnl::memory::dims weight_dims{op.channels, image[2], op.kernel, op.kernel};
    const Desc own = onednn_desc(weight_dims, Format::ohwi), any = onednn_desc(weight_dims, Format::any);
    const Desc bias = bias_ ? onednn_desc({op.channels}, Format::a) : Desc();
    const dnnl::memory::dims strides{op.stride, op.stride}, padding{op.padding, op.padding};
    const auto attributes = onednn_attributes();

    const auto kind =
        options.training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    const dnnl::convolution_forward::primitive_desc forward(
        {kind, algorithm, x, any, bias, y, strides, padding, padding}, attributes, engine_);
    forward_ = part(forward, forward.weights_desc(), own);
    forward_.call = OneDnnCall(dnnl::convolution_forward(forward), engine_,
                               {{DNNL_ARG_SRC, x},
                                {DNNL_ARG_WEIGHTS, forward_.weight},
                                {DNNL_ARG_BIAS, bias},
                                {DNNL_ARG_DST, y},
                                {DNNL_ARG_SCRATCHPAD, forward.scratchpad_desc()}});
    to_forward_ = reorder(own, forward_.weight, false);
    if (!options.training) return;

    const dnnl::convolution_backward_data::primitive_desc input(
        {algorithm, x, any, y, strides, padding, padding}, attributes, engine_, forward);
    input_gradient_ = part(input, input.weights_desc(), own);
    input_gradient_.call = OneDnnCall(dnnl::convolution_backward_data(input), engine_,
                                      {{DNNL_ARG_DIFF_SRC, x},
                                       {DNNL_ARG_WEIGHTS, input_gradient_.weight},
                                       {DNNL_ARG_DIFF_DST, y},
                                       {DNNL_ARG_SCRATCHPAD, input.scratchpad_desc()}});
    to_input_gradient_ = reorder(own, input_gradient_.weight, false);

    const dnnl::convolution_backward_weights::primitive_desc weight(
        {algorithm, x, any, y, strides, padding, padding}, attributes, engine_, forward);
    weight_gradient_ = part(weight, weight.diff_weights_desc(), own);
    // Always by way of the workspace, from where it overwrites the gradient or is added to it.
    weight_gradient_.reordered = true;
    weight_gradient_.call = OneDnnCall(dnnl::convolution_backward_weights(weight), engine_,
                                       {{DNNL_ARG_SRC, x},
                                        {DNNL_ARG_DIFF_WEIGHTS, weight_gradient_.weight},
                                        {DNNL_ARG_DIFF_DST, y},
                                        {DNNL_ARG_SCRATCHPAD, weight.scratchpad_desc()}});
    from_weight_gradient_[0] = reorder(weight_gradient_.weight, own, false);
    from_weight_gradient_[1] = reorder(weight_gradient_.weight, own, true);
  }

  template <class PrimitiveDesc>
  static Part part(const PrimitiveDesc& primitive, const Desc& weight, const Desc& own) {
    return {.call = {},
            .weight = weight,
            .reordered = weight != own,
            .scratch_bytes = static_cast<int64_t>(primitive.scratchpad_desc().get_size())};
  }

  OneDnnCall reorder(const Desc& from, const Desc& to, bool add_to_destination) {
    const dnnl::reorder::primitive_desc primitive(engine_, from, engine_, to,
                                                  onednn_attributes(add_to_destination));
    ensure(primitive.scratchpad_desc().get_size() == 0,
           "reordering a convolution's weight needs scratch memory");
    return OneDnnCall(dnnl::reorder(primitive), engine_, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  }

  const void* weight_for(const Part& part, OneDnnCall& reorder, const void* weight, std::byte* workspace) {
    if (!part.reordered) return weight;
    reorder.run(stream_, {{DNNL_ARG_FROM, weight}, {DNNL_ARG_TO, workspace}});
    return workspace;
  }

  bool bias_;
  int threads_;
  Shape output_;
  ColumnBlocks bias_blocks_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  Part forward_, input_gradient_, weight_gradient_;
  OneDnnCall to_forward_, to_input_gradient_, from_weight_gradient_[2];  // [1] adds to the gradient
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Conv2d& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<Conv2dKernel>(op, inputs[0], options);
}

}  // namespace lockstep::ops
