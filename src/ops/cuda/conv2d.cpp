#include "ops/cuda/conv2d.h"

#include <algorithm>
#include <optional>

#include "base/ensure.h"
#include "ops/checks.h"
#include "ops/cuda/chunked_product.h"
#include "ops/cuda/column_sum.h"
#include "ops/cuda/columns.h"
#include "ops/cuda/folded_product.h"
#include "ops/cuda/product.h"
#include "ops/parts.h"

namespace lockstep::ops {

Windows windows_of(const Conv2d& op, const Shape& image) {
  const Shape output =
      window_output(op.kName, image, op.kernel, op.stride, op.padding, op.channels, op.dilation);
  const auto narrow = [&](int64_t value) {
    if (value > INT32_MAX)
      throw ConfigError(
          fmt::format("{}: {} is more than GPU kernels count to ({})", op.kName, value, INT32_MAX));
    return static_cast<int>(value);
  };
  narrow(output[0] * output[1]);
  narrow(image[0] * image[1]);
  narrow(op.kernel * op.kernel * image[2]);
  return {.height = narrow(image[0]),
          .width = narrow(image[1]),
          .channels = narrow(image[2]),
          .kernel = narrow(op.kernel),
          .stride = narrow(op.stride),
          .padding = narrow(op.padding),
          .out_height = narrow(output[0]),
          .out_width = narrow(output[1]),
          .groups = narrow(op.groups),
          .dilation = narrow(op.dilation)};
}

namespace {

/// Images become matrices of columns, a chunk of the batch at a time, and the rest is three products as in a
/// linear op: columns [windows, kernel * kernel * in], the weight [channels, kernel * kernel * in], y
/// [windows, channels]. A 1x1 kernel of stride 1 needs no columns.
///
/// Chosen before cuDNN's convolutions, which make no columns in memory, because everything but the product
/// runs on any machine's tests, because all products obey one rule of precision and order (cuDNN has no
/// float32 gradient of two-byte weights, and few of its algorithms are deterministic), and because nothing
/// depends on which layouts cuDNN supports for a type. docs/gpu-results.md says what that costs.
///
/// Several virtual replicas are several items of the products (joins_replicas()).
class Conv2dKernel : public Kernel {
 public:
  Conv2dKernel(const Conv2d& op, const TensorSpec& input, const KernelOptions& options)
      : Conv2dKernel(op, windows_of(op, input.shape), options, options.virtual_replicas) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    if (phase == KernelPhase::forward) return columns_bytes_ + Product::workspace_bytes();
    if (phase == KernelPhase::backward_input) return input_columns_bytes_ + Product::workspace_bytes();
    // The products and the bias's sums follow each other and share the memory.
    return std::max(columns_bytes_ + weight_gradient_.workspace_bytes(),
                    bias_sum_ ? bias_sum_->workspace_bytes() : 0);
  }

  void prepare(device::Device& device) override {
    forward_.prepare(device);
    if (!training_) return;
    input_gradient_.prepare(device);
    weight_gradient_.prepare(device);
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    const auto* x = arguments.inputs[0].as<std::byte>();
    auto* y = arguments.outputs[0].as<std::byte>();
    auto* workspace = static_cast<std::byte*>(arguments.workspace);
    const void* bias = bias_sum_ ? arguments.parameters[1].data : nullptr;
    forward_.for_each([&](Product& product, int64_t first, int64_t samples) {
      const void* columns = columns_of(x + first * image_bytes_, samples, workspace, stream);
      product.run(
          {.a = columns, .b = arguments.parameters[0].data, .c = y + first * output_bytes_, .bias = bias},
          workspace + columns_bytes_, stream);
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    const auto* dy = arguments.output_gradients[0].as<std::byte>();
    auto* dx = arguments.input_gradients[0].as<std::byte>();
    auto* workspace = static_cast<std::byte*>(arguments.workspace);
    input_gradient_.for_each([&](Product& product, int64_t first, int64_t samples) {
      std::byte* images = dx + first * image_bytes_;
      std::byte* columns = windows_.are_pixels() ? images : workspace;
      product.run({.a = dy + first * output_bytes_, .b = arguments.parameters[0].data, .c = columns},
                  workspace + input_columns_bytes_, stream);
      if (columns != images)
        columns_to_images(windows_, reinterpret_cast<const float*>(columns), samples, compute_, images,
                          stream);
    });
  }

  void backward_weight(const KernelArguments& arguments, device::Stream& stream) override {
    const auto* x = arguments.inputs[0].as<std::byte>();
    const auto* dy = arguments.output_gradients[0].as<std::byte>();
    auto* workspace = static_cast<std::byte*>(arguments.workspace);
    weight_gradient_.for_each([&](FoldedProduct& product, int64_t first, int64_t samples) {
      const void* columns = columns_of(x + first * image_bytes_, samples, workspace, stream);
      product.run({.a = dy + first * output_bytes_,
                   .b = columns,
                   .c = arguments.parameter_gradients[0].data,
                   .accumulate = arguments.accumulate || first > 0},
                  workspace + columns_bytes_, stream);
    });
    if (bias_sum_)
      bias_sum_->run(dy, arguments.parameter_gradients[1].as<float>(), arguments.accumulate, workspace,
                     stream);
  }

 private:
  Conv2dKernel(const Conv2d& op, const Windows& windows, const KernelOptions& options, int replicas)
      : windows_(windows),
        compute_(options.compute),
        training_(options.training),
        image_bytes_(int64_t{windows.height} * windows.width * windows.channels * size_of(compute_)),
        output_bytes_(windows.per_image() * op.channels * size_of(compute_)),
        column_bytes_(most_column_bytes(options)),
        chunk_(chunk_of(options.batch, size_of(compute_))),
        // Gradients of columns stay float32 until those of a pixel are added.
        input_chunk_(chunk_of(options.batch, size_of(DType::float32))),
        columns_bytes_(columns_bytes(chunk_, size_of(compute_))),
        input_columns_bytes_(columns_bytes(input_chunk_, size_of(DType::float32))),
        forward_(options.batch, chunk_,
                 [&](int64_t samples) {
                   return ProductSpec{.rows = samples / replicas * windows.per_image(),
                                      .columns = op.channels,
                                      .inner = windows.row_length(),
                                      .transpose_b = true,
                                      .factors = compute_,
                                      .result = compute_,
                                      .bias = op.bias,
                                      .tf32 = options.tf32,
                                      .c_alignment = alignment_of(chunk_, options.batch),
                                      .items = replicas,
                                      .shares_b = true,
                                      .batchable = options.reproducible};
                 }),
        input_gradient_(options.batch, input_chunk_,
                        [&](int64_t samples) {
                          return ProductSpec{.rows = samples / replicas * windows.per_image(),
                                             .columns = windows.row_length(),
                                             .inner = op.channels,
                                             .factors = compute_,
                                             .result = windows.are_pixels() ? compute_ : DType::float32,
                                             .tf32 = options.tf32,
                                             .a_alignment = alignment_of(input_chunk_, options.batch),
                                             .items = replicas,
                                             .shares_b = true,
                                             .batchable = options.reproducible};
                        }),
        weight_gradient_(options.batch, chunk_, [&](int64_t samples) {
          return FoldedProduct({.rows = op.channels,
                                .columns = windows.row_length(),
                                .inner = samples / replicas * windows.per_image(),
                                .transpose_a = true,
                                .factors = compute_,
                                .tf32 = options.tf32,
                                .a_alignment = alignment_of(chunk_, options.batch),
                                .batchable = options.reproducible},
                               replicas);
        }) {
    ensure(replicas == 1 || (chunk_ == options.batch && input_chunk_ == options.batch),
           "columns of all virtual replicas are in memory at once");
    if (op.bias)
      bias_sum_.emplace(windows.per_image() * (options.batch / replicas), op.channels, compute_, replicas);
  }

  int64_t chunk_of(int64_t batch, int64_t element_bytes) const {
    if (windows_.are_pixels()) return batch;
    return chunk_size(batch, windows_.columns_per_image() * element_bytes, column_bytes_);
  }
  /// Of the part of y that belongs to a chunk.
  int alignment_of(int64_t chunk, int64_t batch) const {
    return chunk == batch ? kTensorAlignment : alignment_at(chunk * output_bytes_);
  }
  int64_t columns_bytes(int64_t samples, int64_t element_bytes) const {
    return windows_.are_pixels() ? 0 : whole_lines_of(samples * windows_.columns_per_image() * element_bytes);
  }

  const void* columns_of(const std::byte* images, int64_t samples, std::byte* workspace,
                         device::Stream& stream) const {
    if (windows_.are_pixels()) return images;
    images_to_columns(windows_, compute_, images, samples, workspace, stream);
    return workspace;
  }

  Windows windows_;
  DType compute_;
  bool training_;
  int64_t image_bytes_, output_bytes_;           ///< of one sample
  int64_t column_bytes_;                         ///< at the most, as far as one sample allows
  int64_t chunk_, input_chunk_;                  ///< samples whose columns are in memory at once
  int64_t columns_bytes_, input_columns_bytes_;  ///< the workspace begins with them; the products' follows
  ChunkedProduct<Product> forward_, input_gradient_;
  ChunkedProduct<FoldedProduct> weight_gradient_;
  std::optional<ColumnSum> bias_sum_;  ///< of the bias's gradient; none if there is no bias
};

}  // namespace

bool joins_replicas(const Conv2d& op, const TensorSpec& input, const KernelOptions& options) {
  const Windows windows = windows_of(op, input.shape);
  if (windows.groups > 1) return false;
  return windows.are_pixels() ||
         options.batch * windows.columns_per_image() * size_of(DType::float32) <= most_column_bytes(options);
}

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Conv2d& op, Inputs inputs, const KernelOptions& options) {
  if (op.groups > 1) return make_grouped_convolution(op, inputs[0], options);
  return std::make_unique<Conv2dKernel>(op, inputs[0], options);
}

}  // namespace lockstep::ops
