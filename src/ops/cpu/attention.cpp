#include <algorithm>

#include "ops/attention_documents.h"
#include "ops/attention_inputs.h"
#include "ops/cpu/dropout_factors.h"
#include "ops/cpu/loops/attention_head.h"
#include "ops/cpu/loops/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_range.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

class AttentionKernel : public Kernel {
 public:
  AttentionKernel(const Attention& op, Inputs inputs, const KernelOptions& options)
      : dropout_(options.training ? op.dropout : 0.0f),
        given_(inputs),
        sizes_{.batch = options.batch,
               .positions = inputs[0].shape[0],
               .heads = op.heads,
               .key_heads = op.key_value_heads == 0 ? op.heads : op.key_value_heads,
               .causal = op.causal},
        options_(options) {
    sizes_.head_size = inputs[0].shape[1] / (sizes_.heads + 2 * sizes_.key_heads);
  }

  int64_t workspace_bytes(KernelPhase phase) const override {
    const int64_t documents =
        given_.are_given() ? sizes_.batch * sizes_.positions * static_cast<int64_t>(sizeof(int32_t)) : 0;
    switch (phase) {
      case KernelPhase::forward:
        return threads() * sizes_.forward_workspace() * static_cast<int64_t>(sizeof(float)) + documents;
      case KernelPhase::backward_input:
        return threads() * sizes_.backward_workspace() * static_cast<int64_t>(sizeof(float)) + documents;
      case KernelPhase::backward_weight:
        return 0;
    }
    return 0;
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    const RowRange rows = rows_of(options_, arguments, sizes_.positions);
    stream.launch([this, rows, qkv = arguments.inputs[0].as<const float>(), marks = marks_of(arguments),
                   output = arguments.outputs[0].as<float>(),
                   log_sum_exp = arguments.auxiliary[0].as<float>(), constants = arguments.constants,
                   workspace = static_cast<float*>(arguments.workspace),
                   first_sample = arguments.first_sample] {
      AttentionContext context = make_context(constants);
      context.sizes.positions = rows.end;  // no later key is seen
      const int32_t* const documents =
          write_documents(marks, rows.end, workspace + threads() * sizes_.forward_workspace());
      for_each(sizes_.heads, workspace, sizes_.forward_workspace(),
               [&](int64_t sample, int64_t head, float* own) {
                 const Head h = place_of(sample, head);
                 loops().attention_forward({.context = context,
                                            .head = head,
                                            .sample = static_cast<uint32_t>(first_sample + sample),
                                            .query = view(qkv, h.query),
                                            .key = view(qkv, h.key),
                                            .value = view(qkv, h.value),
                                            .documents = of_sample(documents, sample),
                                            .first_query = rows.begin,
                                            .output = output + h.output,
                                            .log_sum_exp = log_sum_exp + h.row,
                                            .workspace = own});
               });
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([this, qkv = arguments.inputs[0].as<const float>(), marks = marks_of(arguments),
                   output = arguments.outputs[0].as<const float>(),
                   log_sum_exp = arguments.auxiliary[0].as<const float>(),
                   output_gradient = arguments.output_gradients[0].as<const float>(),
                   input_gradient = arguments.input_gradients[0].as<float>(), constants = arguments.constants,
                   workspace = static_cast<float*>(arguments.workspace),
                   first_sample = arguments.first_sample] {
      const AttentionContext context = make_context(constants);
      const int32_t* const documents =
          write_documents(marks, sizes_.positions, workspace + threads() * sizes_.backward_workspace());
      const auto of_head = [&](int64_t sample, int64_t head, float* own) {
        const Head h = place_of(sample, head);
        const int64_t channels = sizes_.channels();
        loops().attention_backward({.context = context,
                                    .head = head,
                                    .sample = static_cast<uint32_t>(first_sample + sample),
                                    .query = view(qkv, h.query),
                                    .key = view(qkv, h.key),
                                    .value = view(qkv, h.value),
                                    .output = {output + h.output, channels},
                                    .output_gradient = {output_gradient + h.output, channels},
                                    .documents = of_sample(documents, sample),
                                    .log_sum_exp = log_sum_exp + h.row,
                                    .query_gradient = input_gradient + h.query,
                                    .key_gradient = input_gradient + h.key,
                                    .value_gradient = input_gradient + h.value,
                                    .adds_keys = head % sizes_.group() != 0,
                                    .workspace = own});
      };
      // The queries of a group, which add to the same gradients, one after another.
      for_each(sizes_.key_heads, workspace, sizes_.backward_workspace(),
               [&](int64_t sample, int64_t key_head, float* own) {
                 for (int64_t i = 0; i < sizes_.group(); ++i)
                   of_head(sample, key_head * sizes_.group() + i, own);
               });
    });
  }

 private:
  /// Offsets of one head of one sample.
  struct Head {
    int64_t query, key, value;  // in the input
    int64_t output;
    int64_t row;  // in the log-sum-exps
  };

  /// The optional inputs; null: not given.
  struct Marks {
    const float* mask;
    const int32_t* documents;
  };
  Marks marks_of(const KernelArguments& arguments) const {
    return {given_.mask > 0 ? arguments.inputs[given_.mask].as<const float>() : nullptr,
            given_.documents > 0 ? arguments.inputs[given_.documents].as<const int32_t>() : nullptr};
  }
  /// The documents of the first `count` positions of each sample, in the workspace; null if there are no
  /// marks.
  const int32_t* write_documents(const Marks& marks, int64_t count, float* workspace) const {
    if (!given_.are_given()) return nullptr;
    auto* const documents = reinterpret_cast<int32_t*>(workspace);
    for (int64_t sample = 0; sample < sizes_.batch; ++sample)
      for (int64_t t = sample * sizes_.positions, end = t + count; t < end; ++t)
        documents[t] = attention_document(marks.mask == nullptr ? 1.0f : marks.mask[t],
                                          marks.documents == nullptr ? 0 : marks.documents[t]);
    return documents;
  }
  const int32_t* of_sample(const int32_t* documents, int64_t sample) const {
    return documents == nullptr ? nullptr : documents + sample * sizes_.positions;
  }

  int64_t threads() const { return std::max(1, options_.intra_op_threads); }

  Head place_of(int64_t sample, int64_t head) const {
    const int64_t row = sample * sizes_.positions, key_head = sizes_.heads + head / sizes_.group();
    const auto in_input = [&](int64_t column) {
      return row * sizes_.input_channels() + column * sizes_.head_size;
    };
    return {in_input(head), in_input(key_head), in_input(key_head + sizes_.key_heads),
            row * sizes_.channels() + head * sizes_.head_size,
            (sample * sizes_.heads + head) * sizes_.positions};
  }
  HeadView view(const float* qkv, int64_t offset) const { return {qkv + offset, sizes_.input_channels()}; }

  AttentionContext make_context(const StepConstants* constants) const {
    AttentionContext context{.sizes = sizes_, .drops = dropout_ > 0};
    if (context.drops) context.mask = make_dropout_mask(dropout_, options_.op_number, *constants);
    return context;
  }

  /// Calls work(sample, i, workspace) for i below `count`; each thread has `workspace_count` floats of its
  /// own.
  template <class Work>
  void for_each(int64_t count, float* workspace, int64_t workspace_count, const Work& work) const {
    const int64_t units = sizes_.batch * count, shares = threads();
    parallel_for(static_cast<int>(shares), shares, [&](int64_t thread) {
      for (int64_t unit = units * thread / shares; unit < units * (thread + 1) / shares; ++unit)
        work(unit / count, unit % count, workspace + thread * workspace_count);
    });
  }

  float dropout_;
  AttentionInputs given_;
  AttentionSizes sizes_;
  KernelOptions options_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Attention& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<AttentionKernel>(op, inputs, options);
}

}  // namespace lockstep::ops
