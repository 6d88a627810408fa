#include "ops/cpu/convolution.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <utility>

#include "ops/replica_sums.h"

namespace lockstep::testing {
namespace {

using ops::Convolution;
using ops::ConvolutionSizes;
using Values = std::vector<float>;

struct Case {
  int64_t batch, height, width, channels, kernel, stride, padding, units;
  int replicas;
  int threads;
  int64_t groups = 1, dilation = 1;

  ConvolutionSizes sizes() const {
    return {.batch = batch,
            .height = height,
            .width = width,
            .channels = channels,
            .kernel = kernel,
            .stride = stride,
            .padding = padding,
            .out_height = (height + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1,
            .out_width = (width + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1,
            .units = units,
            .groups = groups,
            .dilation = dilation};
  }
};

class ConvolutionSums : public ::testing::TestWithParam<Case> {
 protected:
  const ConvolutionSizes sizes = GetParam().sizes();
  const Convolution convolution{sizes, GetParam().replicas, GetParam().threads};
  const Values x = random_floats(sizes.batch * sizes.image(), 1),
               weight = random_floats(sizes.units * sizes.window(), 2), bias = random_floats(sizes.units, 3),
               dy = random_floats(sizes.batch * sizes.pixels() * sizes.units, 4);
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float, Free> workspace;

  /// Aligned and not a byte longer, so that AddressSanitizer sees what is beyond.
  float* make_workspace(int64_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(posix_memalign(&memory, 64, static_cast<size_t>(std::max<int64_t>(bytes, 4))), 0);
    workspace.reset(static_cast<float*>(memory));
    std::fill_n(workspace.get(), bytes / 4, std::numeric_limits<float>::quiet_NaN());
    return workspace.get();
  }

  /// Where number k of the window that makes a unit of a pixel of y lies in x; -1 outside of the image.
  int64_t place_in_x(int64_t image, int64_t pixel, int64_t unit, int64_t k) const {
    const int64_t channel = unit / sizes.group_units() * sizes.group_channels() + k % sizes.group_channels();
    const int64_t place = k / sizes.group_channels();
    const int64_t at_y =
        pixel / sizes.out_width * sizes.stride + place / sizes.kernel * sizes.dilation - sizes.padding;
    const int64_t at_x =
        pixel % sizes.out_width * sizes.stride + place % sizes.kernel * sizes.dilation - sizes.padding;
    if (at_y < 0 || at_y >= sizes.height || at_x < 0 || at_x >= sizes.width) return -1;
    return image * sizes.image() + (at_y * sizes.width + at_x) * sizes.channels + channel;
  }
  float window_at(int64_t image, int64_t pixel, int64_t unit, int64_t k) const {
    const int64_t place = place_in_x(image, pixel, unit, k);
    return place < 0 ? 0 : x[static_cast<size_t>(place)];
  }
  float weight_at(int64_t unit, int64_t k) const {
    return weight[static_cast<size_t>(unit * sizes.window() + k)];
  }
  float dy_at(int64_t image, int64_t pixel, int64_t unit) const {
    return dy[static_cast<size_t>((image * sizes.pixels() + pixel) * sizes.units + unit)];
  }
};

TEST_P(ConvolutionSums, ForwardIsOneChainOverTheWindowThenTheBias) {
  Values expected, y(dy.size());
  for (int64_t image = 0; image < sizes.batch; ++image)
    for (int64_t pixel = 0; pixel < sizes.pixels(); ++pixel)
      for (int64_t unit = 0; unit < sizes.units; ++unit)
        expected.push_back(chain(0, sizes.window(),
                                 [&](int64_t k) {
                                   return std::pair(weight_at(unit, k), window_at(image, pixel, unit, k));
                                 }) +
                           bias[static_cast<size_t>(unit)]);
  convolution.forward(x.data(), weight.data(), bias.data(), y.data(),
                      make_workspace(convolution.forward_bytes()));
  EXPECT_EQ(bits_of(y), bits_of(expected));
}

TEST_P(ConvolutionSums, InputGradientAddsThePixelsInAscendingOrder) {
  Values expected(x.size()), dx(x.size());
  const int64_t of_group = sizes.group_units();
  for (int64_t image = 0; image < sizes.batch; ++image)
    for (int64_t pixel = 0; pixel < sizes.pixels(); ++pixel)
      for (int64_t first = 0; first < sizes.units; first += of_group)
        for (int64_t k = 0; k < sizes.window(); ++k)
          if (const int64_t place = place_in_x(image, pixel, first, k); place >= 0)
            expected[static_cast<size_t>(place)] += chain(first, first + of_group, [&](int64_t unit) {
              return std::pair(dy_at(image, pixel, unit), weight_at(unit, k));
            });
  convolution.input_gradient(dy.data(), weight.data(), dx.data(),
                             make_workspace(convolution.input_gradient_bytes()));
  EXPECT_EQ(bits_of(dx), bits_of(expected));
}

TEST_P(ConvolutionSums, WeightGradientIsTheTreeOfTheReplicasChains) {
  const int64_t each = sizes.batch / GetParam().replicas;
  Values expected, dweight(weight.size());
  for (int64_t unit = 0; unit < sizes.units; ++unit)
    for (int64_t k = 0; k < sizes.window(); ++k)
      expected.push_back(tree_sum(0, GetParam().replicas, [&](int replica) {
        return chain(replica * each * sizes.pixels(), (replica + 1) * each * sizes.pixels(), [&](int64_t at) {
          const int64_t image = at / sizes.pixels(), pixel = at % sizes.pixels();
          return std::pair(dy_at(image, pixel, unit), window_at(image, pixel, unit, k));
        });
      }));
  convolution.weight_gradient(dy.data(), x.data(), dweight.data(), false,
                              make_workspace(convolution.weight_gradient_bytes()));
  EXPECT_EQ(bits_of(dweight), bits_of(expected));
}

TEST_P(ConvolutionSums, WeightGradientGoesOnFromMicroBatchToMicroBatch) {
  Values whole(weight.size()), parts(weight.size());
  const Convolution all(sizes, 1, GetParam().threads);
  all.weight_gradient(dy.data(), x.data(), whole.data(), false, make_workspace(all.weight_gradient_bytes()));
  ConvolutionSizes one = sizes;
  one.batch = 1;
  const Convolution each(one, 1, GetParam().threads);
  for (int64_t image = 0; image < sizes.batch; ++image)
    each.weight_gradient(dy.data() + image * sizes.pixels() * sizes.units, x.data() + image * sizes.image(),
                         parts.data(), image > 0, make_workspace(each.weight_gradient_bytes()));
  EXPECT_EQ(bits_of(parts), bits_of(whole));
}

INSTANTIATE_TEST_SUITE_P(
    Products, ConvolutionSums,
    ::testing::Values(Case{1, 1, 1, 1, 1, 1, 0, 1, 1, 1}, Case{2, 5, 6, 1, 3, 1, 1, 2, 2, 1},
                      Case{6, 8, 8, 3, 5, 1, 2, 6, 3, 1}, Case{4, 9, 7, 2, 3, 2, 1, 16, 4, 3},
                      Case{3, 7, 11, 5, 3, 3, 0, 13, 1, 2}, Case{2, 12, 12, 6, 5, 1, 0, 33, 2, 1},
                      Case{5, 4, 4, 50, 3, 1, 1, 8, 5, 1}, Case{2, 10, 3, 17, 2, 2, 1, 25, 1, 4},
                      Case{1, 40, 40, 1, 7, 4, 3, 12, 1, 1}, Case{3, 5, 7, 6, 1, 1, 0, 20, 3, 2},
                      Case{2, 11, 13, 10, 3, 2, 1, 14, 2, 1}, Case{2, 9, 10, 9, 4, 3, 2, 14, 1, 2},
                      Case{7, 3, 3, 20, 3, 1, 1, 40, 7, 2}, Case{40, 1, 1, 30, 3, 1, 1, 17, 8, 1},
                      Case{2, 9, 9, 4, 1, 4, 0, 10, 2, 2}, Case{3, 4, 4, 2, 2, 7, 3, 5, 3, 9},
                      Case{1, 2, 2, 1, 3, 1, 5, 3, 1, 1}, Case{2, 8, 8, 32, 3, 1, 1, 32, 2, 1},
                      Case{2, 9, 9, 40, 3, 2, 1, 24, 1, 3}, Case{1, 10, 6, 48, 3, 1, 0, 20, 1, 1},
                      Case{2, 7, 7, 16, 5, 3, 2, 65, 1, 1}, Case{1, 6, 6, 33, 2, 4, 1, 16, 1, 2},
                      Case{9, 1, 1, 40, 3, 1, 1, 40, 1, 2}, Case{11, 2, 2, 24, 3, 1, 1, 32, 1, 1},
                      Case{2, 4, 4, 3, 2, 1 << 20, 0, 2, 1, 1}, Case{3, 3, 5, 20, 3, 1000, 1, 18, 1, 1},
                      // Groups, of few and many units.
                      Case{2, 6, 7, 6, 3, 1, 1, 4, 1, 1, 2}, Case{3, 9, 8, 12, 3, 2, 1, 40, 3, 2, 2},
                      Case{2, 5, 5, 8, 1, 1, 0, 12, 1, 3, 4}, Case{2, 8, 8, 15, 2, 3, 1, 9, 2, 9, 3},
                      Case{2, 6, 6, 80, 3, 1, 1, 70, 1, 2, 2}, Case{6, 2, 2, 34, 3, 1, 1, 36, 2, 1, 2},
                      Case{2, 7, 9, 3, 3, 1, 1, 6, 2, 2, 3}, Case{2, 7, 9, 6, 3, 1, 1, 3, 2, 1, 3},
                      // Dilations, which share factors with the stride or do not.
                      Case{2, 9, 8, 5, 3, 1, 2, 7, 2, 1, 1, 2}, Case{2, 9, 8, 5, 3, 2, 2, 20, 2, 2, 1, 2},
                      Case{1, 12, 11, 4, 3, 2, 3, 18, 1, 1, 1, 3}, Case{2, 13, 13, 3, 3, 4, 5, 6, 1, 1, 1, 6},
                      Case{1, 14, 12, 2, 4, 6, 4, 17, 1, 1, 1, 4}, Case{1, 7, 7, 40, 2, 1, 0, 40, 1, 1, 1, 5},
                      Case{1, 2, 2, 3, 3, 1, 9, 5, 1, 1, 1, 7}, Case{2, 9, 9, 8, 3, 1, 2, 12, 1, 2, 4, 2},
                      Case{2, 9, 9, 34, 3, 2, 2, 34, 1, 2, 2, 2}, Case{1, 5, 5, 3, 3, 1000, 2, 4, 1, 1, 1, 3},
                      // Many units of many channels, whose weight's gradient is made panel by panel: of
                      // several blocks of pixels and images, with all that moves windows.
                      Case{2, 14, 15, 16, 3, 1, 1, 100, 1, 1}, Case{4, 9, 7, 48, 3, 2, 1, 97, 2, 3},
                      Case{3, 8, 8, 32, 3, 1, 1, 128, 3, 2}, Case{2, 6, 6, 64, 3, 1, 1, 200, 1, 2, 2},
                      Case{2, 9, 9, 32, 3, 2, 2, 96, 1, 2, 1, 2}, Case{3, 9, 9, 64, 1, 2, 0, 96, 1, 1},
                      Case{30, 2, 2, 32, 3, 1, 1, 96, 5, 1}, Case{2, 3, 3, 16, 3, 1, 5, 104, 1, 1},
                      Case{1, 38, 38, 16, 2, 1, 0, 96, 1, 1}, Case{2, 7, 6, 16, 3, 3, 4, 96, 1, 1, 1, 3},
                      // Windows so long that they meet panels piece by piece.
                      Case{2, 3, 3, 288, 3, 1, 1, 290, 1, 2},
                      // Depthwise.
                      Case{2, 6, 7, 5, 3, 1, 1, 5, 2, 1, 5}, Case{3, 9, 8, 35, 3, 2, 1, 35, 3, 2, 35},
                      Case{1, 8, 8, 16, 5, 1, 2, 16, 1, 3, 16}, Case{2, 7, 6, 33, 3, 2, 1, 33, 2, 3, 33},
                      Case{2, 5, 6, 48, 3, 1, 2, 48, 1, 9, 48, 2},
                      Case{2, 11, 9, 17, 3, 2, 2, 17, 2, 1, 17, 3}, Case{3, 4, 4, 2, 1, 1, 0, 2, 1, 1, 2},
                      Case{2, 30, 1, 33, 3, 3, 1, 33, 1, 2, 33}, Case{1, 3, 3, 7, 3, 900, 1, 7, 1, 1, 7}),
    [](const auto& info) { return fmt::format("Case{}", info.index); });

}  // namespace
}  // namespace lockstep::testing
