#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "bench.h"
#include "op_run.h"

namespace lockstep::ops {
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

int64_t product_size(const Bench& bench) { return bench.tiny() ? 32 : 8192; }

/// Microseconds of forward, input gradient and weight gradient.
std::array<double, 3> times_of(Bench& bench, const Op& op, const TensorSpec& input, int64_t batch,
                               const Type& type) {
  OpRun run(bench, op, {input}, {.batch = batch, .compute = type.dtype, .tf32 = type.tf32});
  const std::array times{1e3 * bench.milliseconds([&] { run.forward(); }),
                         1e3 * bench.milliseconds([&] { run.backward_input(); }),
                         1e3 * bench.milliseconds([&] { run.backward_weight(); })};
  bench.release();
  return times;
}

}  // namespace

double product_flops_per_second(Bench& bench) {
  const int64_t size = product_size(bench);
  const auto times = times_of(bench, Linear{.units = size, .bias = false}, {Shape({size})}, size,
                              {"bfloat16", DType::bfloat16, false});
  const auto side = static_cast<double>(size);
  return 2 * side * side * side / times[0] * 1e6;
}

void print_ceilings(Bench& bench) {
  bench.measure_copy();
  fmt::print(
      "{{\"device\":\"{}\",\"copy_bytes_per_second\":{:.6g},\"product_size\":{},\"product_flops\":{:.6g}}}\n",
      bench.device().description(), bench.copy_bytes_per_second(), product_size(bench),
      product_flops_per_second(bench));
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

}  // namespace lockstep::ops
