#include <gtest/gtest.h>

#include <cmath>

#include "data/dataset.h"
#include "data/golden_images.h"

namespace lockstep::data {
namespace {

using test::golden_transform;
using test::GoldenPixels;
using test::TemporaryDirectory;

const std::vector<double> kMean{0.485, 0.456, 0.406}, kDeviation{0.229, 0.224, 0.225};

/// Files of photographs, to the numbers that a model gets, as torchvision has them from the same files.
class Loading : public ::testing::Test {
 protected:
  Loading() {
    std::filesystem::create_directories(folder_ / "all/class");
    for (const auto& entry : std::filesystem::directory_iterator(test::golden_path("loading")))
      std::filesystem::copy(entry.path(), folder_ / ("all/class/" + entry.path().filename().string()));
    options_.kind = DataKind::images;
    options_.directory = folder_.path();
    options_.images.train = options_.images.eval = "all";
    options_.transforms = {ResizeOptions{.height = 20, .width = 22}, NormalizeOptions{kMean, kDeviation}};
    options_.eval_transforms = {ResizeOptions{.shorter = 24}, CenterCropOptions{20, 22},
                                NormalizeOptions{kMean, kDeviation}};
  }

  /// The largest and the mean difference of all values, in steps of a byte.
  static std::pair<double, double> difference(const Dataset& data, const std::string& kind) {
    double largest = 0, sum = 0;
    int64_t count = 0;
    for (int64_t sample = 0; sample < data.size(); ++sample) {
      const std::string name = std::filesystem::path(data.sample_name(sample)).filename().string();
      const GoldenPixels golden = golden_transform(kind + "/" + name, "loading.txt");
      std::vector<float> image(static_cast<size_t>(data.fields()[0].spec.shape.count()));
      EXPECT_EQ(image.size(), golden.values.size()) << name;
      std::byte* const to[] = {reinterpret_cast<std::byte*>(image.data()), nullptr};
      data.read(sample, to);
      for (size_t i = 0; i < image.size(); ++i, ++count) {
        const double steps = std::abs(image[i] - golden.values[i]) * kDeviation[i % 3] * 255;
        largest = std::max(largest, steps);
        sum += steps;
      }
    }
    return {largest, sum / static_cast<double>(count)};
  }

  TemporaryDirectory folder_;
  DataOptions options_;
};

TEST_F(Loading, GivesTorchvisionsNumbersFromFileToTensor) {
  options_.images.scaled_decoding = false;
  const DatasetPair data = open_datasets(options_);
  ASSERT_EQ(data.train->size(), 6);
  constexpr double kRounding = 1e-3;
  for (const auto& [part, kind] : {std::pair(data.train, "train"), std::pair(data.eval, "eval")}) {
    const auto [largest, mean] = difference(*part, kind);
    EXPECT_LE(largest, 1 + kRounding) << kind;
    EXPECT_LT(mean, 0.1) << kind;
  }
}

// The default trades some of that for time.
TEST_F(Loading, ScaledDecodingStaysNear) {
  const DatasetPair data = open_datasets(options_);
  const auto [largest, mean] = difference(*data.train, "train");
  EXPECT_GT(largest, 1);
  EXPECT_LT(mean, 2);
}

}  // namespace
}  // namespace lockstep::data
