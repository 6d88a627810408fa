#include <algorithm>
#include <optional>

#include "base/ensure.h"
#include "ops/cuda/chunked_product.h"
#include "ops/cuda/column_sum.h"
#include "ops/cuda/conv2d.h"
#include "ops/cuda/group_order.h"

namespace lockstep::ops {
namespace {

/// As Conv2dKernel (conv2d.cpp), with a matrix of columns for each group: products of all groups are items of
/// one call. Their rows of y have the channels of one group, so y and dy pass through memory once more, as
/// [groups, pixels, channels of a group]. Depthwise convolutions are products with a single column, which are
/// far from what a GPU can do; a kernel of their own would have to be measured.
class GroupedConvolution : public Kernel {
 public:
  GroupedConvolution(const Conv2d& op, const Windows& windows, const KernelOptions& options)
      : windows_(windows),
        channels_(op.channels),
        compute_(options.compute),
        training_(options.training),
        chunk_(chunk_size(options.batch, windows.columns_per_image() * size_of(DType::float32),
                          most_column_bytes(options))),
        forward_(options.batch, chunk_,
                 [&](int64_t samples) {
                   return product(options, {.rows = samples * windows.per_image(),
                                            .columns = group_outputs(),
                                            .inner = windows.row_length(),
                                            .transpose_b = true});
                 }),
        input_gradient_(options.batch, chunk_,
                        [&](int64_t samples) {
                          return product(options, {.rows = samples * windows.per_image(),
                                                   .columns = windows.row_length(),
                                                   .inner = group_outputs()});
                        }),
        weight_gradient_(options.batch, chunk_, [&](int64_t samples) {
          return product(options, {.rows = group_outputs(),
                                   .columns = windows.row_length(),
                                   .inner = samples * windows.per_image(),
                                   .transpose_a = true});
        }) {
    ensure(options.virtual_replicas == 1, "virtual replicas of grouped convolutions are computed one by one");
    if (op.bias) bias_sum_.emplace(windows.per_image() * options.batch, op.channels, compute_);
  }

  int64_t workspace_bytes(KernelPhase phase) const override {
    const int64_t own = columns_bytes() + outputs_bytes() + Product::workspace_bytes();
    if (phase != KernelPhase::backward_weight || !bias_sum_) return own;
    return std::max(own, bias_sum_->workspace_bytes());  // which follow each other and share the memory
  }

  void prepare(device::Device& device) override {
    forward_.prepare(device);
    if (!training_) return;
    input_gradient_.prepare(device);
    weight_gradient_.prepare(device);
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    const Memory memory = memory_of(arguments);
    const void* bias = bias_sum_ ? arguments.parameters[1].data : nullptr;
    forward_.for_each([&](Product& product, int64_t first, int64_t samples) {
      images_to_columns(windows_, compute_, image_at(arguments.inputs[0].data, first), samples,
                        memory.columns, stream);
      product.run({.a = memory.columns, .b = arguments.parameters[0].data, .c = memory.outputs},
                  memory.workspace, stream);
      join_groups(reinterpret_cast<const float*>(memory.outputs), bias, samples * windows_.per_image(),
                  windows_.groups, group_outputs(), compute_, output_at(arguments.outputs[0].data, first),
                  stream);
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    const Memory memory = memory_of(arguments);
    input_gradient_.for_each([&](Product& product, int64_t first, int64_t samples) {
      split_outputs(arguments, first, samples, memory, stream);
      product.run({.a = memory.outputs, .b = arguments.parameters[0].data, .c = memory.columns},
                  memory.workspace, stream);
      columns_to_images(windows_, reinterpret_cast<const float*>(memory.columns), samples, compute_,
                        image_at(arguments.input_gradients[0].data, first), stream);
    });
  }

  void backward_weight(const KernelArguments& arguments, device::Stream& stream) override {
    const Memory memory = memory_of(arguments);
    weight_gradient_.for_each([&](Product& product, int64_t first, int64_t samples) {
      images_to_columns(windows_, compute_, image_at(arguments.inputs[0].data, first), samples,
                        memory.columns, stream);
      split_outputs(arguments, first, samples, memory, stream);
      product.run({.a = memory.outputs,
                   .b = memory.columns,
                   .c = arguments.parameter_gradients[0].data,
                   .accumulate = arguments.accumulate || first > 0},
                  memory.workspace, stream);
    });
    if (bias_sum_)
      bias_sum_->run(arguments.output_gradients[0].data, arguments.parameter_gradients[1].as<float>(),
                     arguments.accumulate, arguments.workspace, stream);
  }

 private:
  struct Memory {
    std::byte *columns, *outputs, *workspace;  ///< outputs: a chunk of y or dy, group by group
  };

  int64_t group_outputs() const { return channels_ / windows_.groups; }

  /// Results are float32: those of y are rounded once, with the bias, and those of columns once added.
  ProductSpec product(const KernelOptions& options, ProductSpec spec) const {
    const auto alignment = [](int64_t count, DType dtype) { return alignment_at(count * size_of(dtype)); };
    spec.factors = compute_;
    spec.result = DType::float32;
    spec.tf32 = options.tf32;
    spec.items = windows_.groups;
    spec.a_alignment = alignment(spec.a_count(), compute_);
    spec.b_alignment = alignment(spec.b_count(), compute_);
    spec.c_alignment = alignment(spec.c_count(), DType::float32);
    spec.batchable = options.reproducible;
    return spec;
  }

  int64_t columns_bytes() const {
    return whole_lines_of(chunk_ * windows_.columns_per_image() * size_of(DType::float32));
  }
  int64_t outputs_bytes() const {
    return whole_lines_of(chunk_ * windows_.per_image() * channels_ * size_of(DType::float32));
  }
  Memory memory_of(const KernelArguments& arguments) const {
    auto* begin = static_cast<std::byte*>(arguments.workspace);
    return {begin, begin + columns_bytes(), begin + columns_bytes() + outputs_bytes()};
  }
  std::byte* image_at(void* images, int64_t sample) const {
    const int64_t image = int64_t{windows_.height} * windows_.width * windows_.channels;
    return static_cast<std::byte*>(images) + sample * image * size_of(compute_);
  }
  std::byte* output_at(void* outputs, int64_t sample) const {
    return static_cast<std::byte*>(outputs) + sample * windows_.per_image() * channels_ * size_of(compute_);
  }
  void split_outputs(const KernelArguments& arguments, int64_t first, int64_t samples, const Memory& memory,
                     device::Stream& stream) const {
    split_groups(compute_, output_at(arguments.output_gradients[0].data, first),
                 samples * windows_.per_image(), windows_.groups, group_outputs(), memory.outputs, stream);
  }

  Windows windows_;
  int64_t channels_;
  DType compute_;
  bool training_;
  int64_t chunk_;  ///< samples whose columns are in memory at once
  ChunkedProduct<Product> forward_, input_gradient_, weight_gradient_;
  std::optional<ColumnSum> bias_sum_;  ///< of the bias's gradient; none if there is no bias
};

}  // namespace

std::unique_ptr<Kernel> make_grouped_convolution(const Conv2d& op, const TensorSpec& input,
                                                 const KernelOptions& options) {
  return std::make_unique<GroupedConvolution>(op, windows_of(op, input.shape), options);
}

}  // namespace lockstep::ops
