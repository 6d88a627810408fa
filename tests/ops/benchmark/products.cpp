#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "bench.h"
#include "ops/op.h"

namespace lockstep {
namespace {

struct Type {
  std::string_view name;
  DType dtype;
  bool tf32;
};

struct Convolution {
  std::string_view name;
  int64_t side, channels, out_channels, kernel, padding;
};

/// Microseconds of forward, input gradient and weight gradient.
std::array<double, 3> times_of(Bench& bench, const Op& op, const TensorSpec& input, int64_t batch,
                               const Type& type) {
  const std::vector<TensorSpec> inputs{input};
  const OpSignature signature = infer(op, inputs);
  const auto kernel =
      make_kernel(DeviceKind::cuda, op, inputs, {.batch = batch, .compute = type.dtype, .tf32 = type.tf32});
  kernel->prepare(bench.device());
  const auto make = [&](const Shape& shape) { return bench.make({shape, type.dtype}); };
  const Tensor x = make(input.shape.batched(batch)), dx = make(input.shape.batched(batch));
  const Tensor y = make(signature.outputs[0].shape.batched(batch)), dy = make(y.shape);
  const Tensor weight = make(signature.parameters[0].shape),
               gradient = bench.make({signature.parameters[0].shape});
  int64_t workspace_bytes = 0;
  for (const auto phase : {KernelPhase::forward, KernelPhase::backward_input, KernelPhase::backward_weight})
    workspace_bytes = std::max(workspace_bytes, kernel->workspace_bytes(phase));
  const KernelArguments arguments{.inputs = {&x, 1},
                                  .outputs = {&y, 1},
                                  .parameters = {&weight, 1},
                                  .output_gradients = {&dy, 1},
                                  .input_gradients = {&dx, 1},
                                  .parameter_gradients = {&gradient, 1},
                                  .workspace = bench.make_bytes(workspace_bytes),
                                  .constants = bench.make_copy(StepConstants{})};
  const std::array times{
      1e3 * bench.milliseconds([&] { kernel->forward(arguments, bench.stream()); }),
      1e3 * bench.milliseconds([&] { kernel->backward_input(arguments, bench.stream()); }),
      1e3 * bench.milliseconds([&] { kernel->backward_weight(arguments, bench.stream()); })};
  bench.release();
  return times;
}

}  // namespace

void print_ceilings(Bench& bench) {
  const int64_t size = bench.tiny() ? 32 : 8192;
  bench.measure_copy();
  const auto times = times_of(bench, Linear{.units = size, .bias = false}, {Shape({size})}, size,
                              {"bfloat16", DType::bfloat16, false});
  const auto side = static_cast<double>(size);
  fmt::print(
      "{{\"device\":\"{}\",\"copy_bytes_per_second\":{:.6g},\"product_size\":{},\"product_flops\":{:.6g}}}\n",
      bench.device().description(), bench.copy_bytes_per_second(), size,
      2 * side * side * side / times[0] * 1e6);
}

void print_convolutions(Bench& bench) {
  const Convolution all[] = {{"LeNet 1", 28, 1, 6, 5, 2},           {"LeNet 2", 14, 6, 16, 5, 0},
                             {"56x56x64 3x3", 56, 64, 64, 3, 1},    {"28x28x128 3x3", 28, 128, 128, 3, 1},
                             {"14x14x256 3x3", 14, 256, 256, 3, 1}, {"56x56x256 1x1", 56, 256, 64, 1, 0}};
  const Type types[] = {{"float32", DType::float32, false},
                        {"tf32", DType::float32, true},
                        {"bfloat16", DType::bfloat16, false}};
  for (Convolution c : all) {
    const int64_t batch = bench.tiny() ? 1 : 64;
    if (bench.tiny())
      c.side = std::min<int64_t>(c.side, 6), c.channels = std::min<int64_t>(c.channels, 4),
      c.out_channels = 4;
    for (const Type& type : types) {
      const Conv2d op{.channels = c.out_channels, .kernel = c.kernel, .padding = c.padding, .bias = false};
      const auto times = times_of(bench, op, {Shape({c.side, c.side, c.channels})}, batch, type);
      fmt::print(
          "{{\"name\":\"{}\",\"type\":\"{}\",\"batch\":{},\"side\":{},\"channels\":{},\"out_channels\":{},"
          "\"kernel\":{},"
          "\"padding\":{},\"forward_us\":{:.6g},\"input_gradient_us\":{:.6g},\"weight_gradient_us\":{:.6g}}}"
          "\n",
          c.name, type.name, batch, c.side, c.channels, c.out_channels, c.kernel, c.padding, times[0],
          times[1], times[2]);
      std::fflush(stdout);
    }
  }
}

}  // namespace lockstep
