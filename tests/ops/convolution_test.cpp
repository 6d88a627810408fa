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

  ConvolutionSizes sizes() const {
    return {.batch = batch,
            .height = height,
            .width = width,
            .channels = channels,
            .kernel = kernel,
            .stride = stride,
            .padding = padding,
            .out_height = (height + 2 * padding - kernel) / stride + 1,
            .out_width = (width + 2 * padding - kernel) / stride + 1,
            .units = units};
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

  /// Number k of the window of pixel (y, x) of an image.
  float window_at(int64_t image, int64_t pixel, int64_t k) const {
    const int64_t channel = k % sizes.channels, place = k / sizes.channels;
    const int64_t at_y = pixel / sizes.out_width * sizes.stride + place / sizes.kernel - sizes.padding;
    const int64_t at_x = pixel % sizes.out_width * sizes.stride + place % sizes.kernel - sizes.padding;
    if (at_y < 0 || at_y >= sizes.height || at_x < 0 || at_x >= sizes.width) return 0;
    return x[static_cast<size_t>(image * sizes.image() + (at_y * sizes.width + at_x) * sizes.channels +
                                 channel)];
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
        expected.push_back(
            chain(0, sizes.window(),
                  [&](int64_t k) { return std::pair(weight_at(unit, k), window_at(image, pixel, k)); }) +
            bias[static_cast<size_t>(unit)]);
  convolution.forward(x.data(), weight.data(), bias.data(), y.data(),
                      make_workspace(convolution.forward_bytes()));
  EXPECT_EQ(bits_of(y), bits_of(expected));
}

TEST_P(ConvolutionSums, InputGradientAddsThePixelsInAscendingOrder) {
  Values expected(x.size()), dx(x.size());
  for (int64_t image = 0; image < sizes.batch; ++image)
    for (int64_t pixel = 0; pixel < sizes.pixels(); ++pixel)
      for (int64_t k = 0; k < sizes.window(); ++k) {
        const int64_t channel = k % sizes.channels, place = k / sizes.channels;
        const int64_t at_y = pixel / sizes.out_width * sizes.stride + place / sizes.kernel - sizes.padding;
        const int64_t at_x = pixel % sizes.out_width * sizes.stride + place % sizes.kernel - sizes.padding;
        if (at_y < 0 || at_y >= sizes.height || at_x < 0 || at_x >= sizes.width) continue;
        expected[static_cast<size_t>(image * sizes.image() + (at_y * sizes.width + at_x) * sizes.channels +
                                     channel)] += chain(0, sizes.units, [&](int64_t unit) {
          return std::pair(dy_at(image, pixel, unit), weight_at(unit, k));
        });
      }
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
          return std::pair(dy_at(image, pixel, unit), window_at(image, pixel, k));
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
                      Case{2, 7, 7, 16, 5, 3, 2, 65, 1, 1}, Case{1, 6, 6, 33, 2, 4, 1, 16, 1, 2}),
    [](const auto& info) { return fmt::format("Case{}", info.index); });

}  // namespace
}  // namespace lockstep::testing
