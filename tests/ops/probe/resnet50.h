#pragma once

#include <cstdint>
#include <string>

namespace lockstep::ops {

/// A convolution of ResNet-50, of square images without bias.
struct ProbedConvolution {
  int64_t side, channels, out_channels, kernel, stride = 1;
  int count = 1;  ///< in the model

  int64_t padding() const { return kernel / 2; }
  int64_t out_side() const { return (side + 2 * padding() - kernel) / stride + 1; }
  std::string name() const {
    const auto text = [](int64_t number) { return std::to_string(number); };
    return text(side) + "x" + text(side) + " " + text(channels) + "->" + text(out_channels) + " " +
           text(kernel) + "x" + text(kernel) + (stride > 1 ? "/" + text(stride) : "");
  }
  /// Of each of its three products.
  double flops(int64_t batch) const {
    return 2.0 *
           static_cast<double>(batch * out_side() * out_side() * out_channels * kernel * kernel * channels);
  }
};

inline constexpr int64_t kProbedBatch = 64;

/// Each shape once. The stride of a block is that of its 3x3 convolution.
inline constexpr ProbedConvolution kResNet50[] = {
    {224, 3, 64, 7, 2},      {56, 64, 64, 1},          {56, 64, 64, 3, 1, 3},   {56, 64, 256, 1, 1, 4},
    {56, 256, 64, 1, 1, 2},  {56, 256, 128, 1},        {56, 128, 128, 3, 2},    {28, 128, 512, 1, 1, 4},
    {56, 256, 512, 1, 2},    {28, 512, 128, 1, 1, 3},  {28, 128, 128, 3, 1, 3}, {28, 512, 256, 1},
    {28, 256, 256, 3, 2},    {14, 256, 1024, 1, 1, 6}, {28, 512, 1024, 1, 2},   {14, 1024, 256, 1, 1, 5},
    {14, 256, 256, 3, 1, 5}, {14, 1024, 512, 1},       {14, 512, 512, 3, 2},    {7, 512, 2048, 1, 1, 3},
    {14, 1024, 2048, 1, 2},  {7, 2048, 512, 1, 1, 2},  {7, 512, 512, 3, 1, 2},
};

/// The same of next to nothing.
constexpr ProbedConvolution shrunk(ProbedConvolution c) {
  c.side = c.side < 8 ? c.side : 8;
  c.channels = c.channels < 8 ? c.channels : 8;
  c.out_channels = 8;
  return c;
}

}  // namespace lockstep::ops
