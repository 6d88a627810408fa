#include <algorithm>

#include "ops/cpu/dropout_factors.h"
#include "ops/cpu/loops/attention_head.h"
#include "ops/cpu/loops/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

class AttentionKernel : public Kernel {
 public:
  AttentionKernel(const Attention& op, const TensorSpec& input, const KernelOptions& options)
      : dropout_(options.training ? op.dropout : 0.0f),
        sizes_{options.batch, input.shape[0], op.heads, input.shape[1] / 3 / op.heads},
        options_(options) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    const int64_t threads = std::max(1, options_.intra_op_threads);
    switch (phase) {
      case KernelPhase::forward:
        return threads * sizes_.forward_workspace() * static_cast<int64_t>(sizeof(float));
      case KernelPhase::backward_input:
        return threads * sizes_.backward_workspace() * static_cast<int64_t>(sizeof(float));
      case KernelPhase::backward_weight:
        return 0;
    }
    return 0;
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch(
        [this, qkv = arguments.inputs[0].as<const float>(), output = arguments.outputs[0].as<float>(),
         log_sum_exp = arguments.auxiliary[0].as<float>(), constants = arguments.constants,
         workspace = static_cast<float*>(arguments.workspace), first_sample = arguments.first_sample] {
          const AttentionContext context = make_context(constants);
          for_each_head(workspace, sizes_.forward_workspace(), [&](int64_t sample, int64_t head, float* own) {
            const Head h = place_of(sample, head);
            loops().attention_forward({.context = context,
                                       .head = head,
                                       .sample = static_cast<uint32_t>(first_sample + sample),
                                       .query = query_of(qkv, h),
                                       .key = key_of(qkv, h),
                                       .value = value_of(qkv, h),
                                       .output = output + h.output,
                                       .log_sum_exp = log_sum_exp + h.row,
                                       .workspace = own});
          });
        });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([this, qkv = arguments.inputs[0].as<const float>(),
                   output = arguments.outputs[0].as<const float>(),
                   log_sum_exp = arguments.auxiliary[0].as<const float>(),
                   output_gradient = arguments.output_gradients[0].as<const float>(),
                   input_gradient = arguments.input_gradients[0].as<float>(), constants = arguments.constants,
                   workspace = static_cast<float*>(arguments.workspace),
                   first_sample = arguments.first_sample] {
      const AttentionContext context = make_context(constants);
      for_each_head(workspace, sizes_.backward_workspace(), [&](int64_t sample, int64_t head, float* own) {
        const Head h = place_of(sample, head);
        const int64_t channels = sizes_.channels();
        loops().attention_backward({.context = context,
                                    .head = head,
                                    .sample = static_cast<uint32_t>(first_sample + sample),
                                    .query = query_of(qkv, h),
                                    .key = key_of(qkv, h),
                                    .value = value_of(qkv, h),
                                    .output = {output + h.output, channels},
                                    .output_gradient = {output_gradient + h.output, channels},
                                    .log_sum_exp = log_sum_exp + h.row,
                                    .input_gradient = input_gradient + h.input,
                                    .workspace = own});
      });
    });
  }

 private:
  /// Offsets of one head of one sample.
  struct Head {
    int64_t input;   // of its query in the input
    int64_t output;  // in the output
    int64_t row;     // in the log-sum-exps
  };

  Head place_of(int64_t sample, int64_t head) const {
    const int64_t row = sample * sizes_.positions, column = head * sizes_.head_size;
    return {row * 3 * sizes_.channels() + column, row * sizes_.channels() + column,
            (sample * sizes_.heads + head) * sizes_.positions};
  }
  HeadView query_of(const float* qkv, Head h) const { return {qkv + h.input, 3 * sizes_.channels()}; }
  HeadView key_of(const float* qkv, Head h) const {
    return {qkv + h.input + sizes_.channels(), 3 * sizes_.channels()};
  }
  HeadView value_of(const float* qkv, Head h) const {
    return {qkv + h.input + 2 * sizes_.channels(), 3 * sizes_.channels()};
  }

  AttentionContext make_context(const StepConstants* constants) const {
    AttentionContext context{.sizes = sizes_, .drops = dropout_ > 0};
    if (context.drops) context.mask = make_dropout_mask(dropout_, options_.op_number, *constants);
    return context;
  }

  /// Calls work(sample, head, workspace) for every head; each thread has `workspace_count` floats of its own.
  template <class Work>
  void for_each_head(float* workspace, int64_t workspace_count, const Work& work) const {
    const int64_t threads = std::max(1, options_.intra_op_threads), units = sizes_.batch * sizes_.heads;
    parallel_for(static_cast<int>(threads), threads, [&](int64_t thread) {
      for (int64_t unit = units * thread / threads; unit < units * (thread + 1) / threads; ++unit)
        work(unit / sizes_.heads, unit % sizes_.heads, workspace + thread * workspace_count);
    });
  }

  float dropout_;
  AttentionSizes sizes_;
  KernelOptions options_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Attention& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<AttentionKernel>(op, inputs[0], options);
}

}  // namespace lockstep::ops
