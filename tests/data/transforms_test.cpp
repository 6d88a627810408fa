#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "data/golden_images.h"
#include "data/transforms/affine.h"
#include "data/transforms/chain.h"
#include "data/transforms/color.h"
#include "data/transforms/memory_pixels.h"
#include "data/transforms/random_box.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

using test::golden_transform;
using test::GoldenPixels;
using test::message_of;
using ::testing::HasSubstr;

void expect_near(const std::vector<float>& found, const GoldenPixels& golden, float tolerance) {
  ASSERT_EQ(found.size(), golden.values.size());
  for (size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found[i], golden.values[i], tolerance) << "value " << i;
}

/// What a chain makes of the golden input.
std::vector<float> transformed(const std::vector<TransformOptions>& options, const SampleKey& key = 0,
                               const GoldenPixels& input = golden_transform("input")) {
  const TransformChain chain(options);
  std::vector<float> room, out(static_cast<size_t>(chain.output(input.shape).count()));
  MemoryPixels source(input.shape, input.values.data(), room);
  chain.apply(key, source, out.data(), scratch_of_thread());
  return out;
}

TEST(Resize, GivesTorchvisionsValues) {
  for (const auto& [name, filter] :
       {std::pair("bilinear", ResizeFilter::bilinear), std::pair("bicubic", ResizeFilter::bicubic)})
    for (const auto& [height, width] : {std::pair(5, 7), std::pair(30, 20), std::pair(12, 4)}) {
      SCOPED_TRACE(name + std::to_string(height));
      expect_near(transformed({ResizeOptions{.height = height, .width = width, .filter = filter}}),
                  golden_transform("resize_" + std::string(name) + "_" + std::to_string(height) + "_" +
                                   std::to_string(width)),
                  1e-5f);
    }
  expect_near(transformed({ResizeOptions{.shorter = 6}}), golden_transform("resize_shorter_6"), 1e-5f);
}

/// An image of bytes that lies in memory.
class BytePixels : public PixelSource {
 public:
  BytePixels(const ImageShape& shape, const std::vector<uint8_t>& bytes) : shape_(shape), bytes_(bytes) {}
  ImageShape shape() const override { return shape_; }
  bool has_bytes() const override { return true; }
  int64_t reduction(int64_t /*most*/) const override { return 1; }
  PixelView read(const Region& region, int64_t /*reduction*/) override {
    part_.clear();
    for (int64_t y = region.y; y < region.y + region.height; ++y)
      for (int64_t i = region.x * shape_.channels; i < (region.x + region.width) * shape_.channels; ++i)
        part_.push_back(bytes_[static_cast<size_t>(y * shape_.width * shape_.channels + i)]);
    return {.shape = {region.height, region.width, shape_.channels}, .bytes = part_.data()};
  }

 private:
  ImageShape shape_;
  std::vector<uint8_t> bytes_, part_;
};

TEST(Resize, RoundsToTheNearestByteWhatWasBytes) {
  // Three pixels become one, with weights 2/7, 3/7 and 2/7: 75/7 and 72/7.
  const TransformOptions options[] = {ResizeOptions{.height = 1, .width = 1}};
  const TransformChain chain(options);
  for (const auto& [last, middle, expected] : {std::tuple(11, 11, 11), {11, 10, 10}}) {
    BytePixels source({1, 3, 1}, {10, static_cast<uint8_t>(middle), static_cast<uint8_t>(last)});
    float out = 0;
    chain.apply(0, source, &out, scratch_of_thread());
    EXPECT_FLOAT_EQ(out, static_cast<float>(expected) / 255);
    // Of floats nothing is rounded.
    const float values[] = {10 / 255.f, static_cast<float>(middle) / 255, static_cast<float>(last) / 255};
    std::vector<float> room;
    MemoryPixels floats({1, 3, 1}, values, room);
    chain.apply(0, floats, &out, scratch_of_thread());
    EXPECT_NEAR(out * 255, static_cast<float>(middle == 11 ? 75 : 72) / 7, 1e-4);
  }
}

TEST(Resample, CutsBeforeItResizes) {
  const GoldenPixels input = golden_transform("input"), golden = golden_transform("resized_crop_2_3_7_9_6_5");
  std::vector<float> room, out(golden.values.size());
  MemoryPixels source(input.shape, input.values.data(), room);
  resample(source, Window::of({2, 3, 7, 9}, 6, 5, ResizeFilter::bilinear), out.data(),
           scratch_of_thread().resampling);
  expect_near(out, golden, 1e-5f);
}

TEST(Resample, KeepsBitsOfWhatIsOnlyCut) {
  const GoldenPixels input = golden_transform("input"), golden = golden_transform("center_crop_7_6");
  EXPECT_EQ(transformed({CenterCropOptions{7, 6}}), golden.values);
}

TEST(Resample, ComputesAPartLikeTheWhole) {
  const auto whole = transformed({ResizeOptions{.height = 9, .width = 11}});
  const auto part = transformed({ResizeOptions{.height = 9, .width = 11}, CenterCropOptions{5, 3}});
  for (int64_t y = 0; y < 5; ++y)
    for (int64_t i = 0; i < 3 * 3; ++i)
      EXPECT_EQ(part[static_cast<size_t>(y * 9 + i)], whole[static_cast<size_t>((y + 2) * 33 + 4 * 3 + i)]);
}

TEST(Affine, GivesTorchvisionsValues) {
  const GoldenPixels input = golden_transform("input");
  std::vector<float> scratch;
  for (const auto& [name, motion] :
       {std::pair("affine_30_0_0_1_0", AffineMotion{.angle = 30}),
        std::pair("affine_-75_2_-1_1.3_0",
                  AffineMotion{.angle = -75, .shift_x = 2, .shift_y = -1, .scale = 1.3}),
        std::pair("affine_10_0_3_0.7_20",
                  AffineMotion{.angle = 10, .shift_y = 3, .scale = 0.7, .shear = 20})}) {
    SCOPED_TRACE(name);
    auto pixels = input.values;
    move_image(motion, 0, input.shape, pixels.data(), scratch);
    expect_near(pixels, golden_transform(name), 1e-4f);
  }
}

TEST(Affine, LeavesAnImageThatDoesNotMove) {
  EXPECT_EQ(transformed({AffineOptions{}}), golden_transform("input").values);
}

TEST(Color, GivesTorchvisionsValues) {
  const GoldenPixels input = golden_transform("input");
  const auto check = [&](const char* name, auto&& change) {
    SCOPED_TRACE(name);
    auto pixels = input.values;
    change(pixels.data());
    expect_near(pixels, golden_transform(name), 1e-5f);
  };
  check("brightness_1.4", [&](float* p) { adjust_brightness(input.shape, 1.4f, p); });
  check("contrast_0.6", [&](float* p) { adjust_contrast(input.shape, 0.6f, p); });
  check("saturation_1.7", [&](float* p) { adjust_saturation(input.shape, 1.7f, p); });
  check("hue_0.3", [&](float* p) { adjust_hue(input.shape, 0.3f, p); });
  check("hue_-0.4", [&](float* p) { adjust_hue(input.shape, -0.4f, p); });
  check("gray", [&](float* p) { make_gray(input.shape, p); });
  expect_near(transformed({NormalizeOptions{{0.5, 0.4, 0.3}, {0.2, 0.25, 0.3}}}),
              golden_transform("normalize"), 1e-5f);
}

TEST(Flip, MirrorsByItsProbabilities) {
  const GoldenPixels row{{1, 3, 1}, {1, 2, 3}}, column{{3, 1, 1}, {1, 2, 3}};
  EXPECT_EQ(transformed({FlipOptions{1, 0}}, 0, row), (std::vector<float>{3, 2, 1}));
  EXPECT_EQ(transformed({FlipOptions{0, 1}}, 0, row), row.values);
  EXPECT_EQ(transformed({FlipOptions{0, 1}}, 0, column), (std::vector<float>{3, 2, 1}));
  int flipped = 0;
  for (int64_t sample = 0; sample < 1000; ++sample)
    flipped += transformed({FlipOptions{0.5, 0}}, sample, row).front() == 3;
  EXPECT_NEAR(flipped, 500, 80);  // five deviations
}

TEST(PadCrop, MovesTheImageWithinTheBorder) {
  const GoldenPixels image{{2, 2, 1}, {1, 2, 3, 4}};
  std::set<std::vector<float>> seen;
  for (int64_t sample = 0; sample < 400; ++sample)
    seen.insert(transformed({PadCropOptions{1, 9}}, sample, image));
  EXPECT_EQ(seen.size(), 9u);  // three places in each direction
  EXPECT_TRUE(seen.contains({1, 2, 3, 4}));
  EXPECT_TRUE(seen.contains({9, 9, 9, 1}));
  EXPECT_TRUE(seen.contains({4, 9, 9, 9}));
  EXPECT_TRUE(seen.contains({2, 9, 4, 9}));
}

TEST(PadCrop, LeavesOnlyTheBorderOfAMuchSmallerImage) {
  const GoldenPixels image{{1, 1, 1}, {5}};
  std::set<std::vector<float>> seen;
  for (int64_t sample = 0; sample < 200; ++sample)
    seen.insert(transformed({PadCropOptions{3, 9}}, sample, image));
  EXPECT_EQ(seen, (std::set<std::vector<float>>{{5}, {9}}));
}

TEST(RandomBox, StaysInsideAndWithinItsLimits) {
  const ImageShape image{60, 90, 3};
  for (int64_t sample = 0; sample < 500; ++sample) {
    const auto box = draw_box(SampleDraws({sample, 2, 7}, 1), image, 0.1, 0.5, 0.5, 2);
    if (!box) continue;
    EXPECT_TRUE(box->y >= 0 && box->x >= 0 && box->y + box->height <= 60 && box->x + box->width <= 90);
    const double area = static_cast<double>(box->height * box->width) / (60 * 90);
    EXPECT_TRUE(area > 0.09 && area < 0.52) << area;
    const double aspect = static_cast<double>(box->width) / static_cast<double>(box->height);
    EXPECT_TRUE(aspect > 0.47 && aspect < 2.12) << aspect;
  }
}

TEST(RandomResizedCrop, TakesTheMiddleWhereNothingFits) {
  // A row of pixels has no part of these aspect ratios but single pixels, whose area is too small.
  const GoldenPixels row{{1, 9, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8}};
  EXPECT_EQ(transformed({RandomResizedCropOptions{.height = 1, .width = 1, .area_min = 0.9}}, 3, row),
            (std::vector<float>{4}));
}

TEST(Erase, SetsOneRectangle) {
  const GoldenPixels image{{20, 20, 1}, std::vector<float>(400, 1)};
  const auto erased = transformed({EraseOptions{.probability = 1, .value = 7}}, 0, image);
  const auto count = std::ranges::count(erased, 7.0f);
  EXPECT_GE(count, 4);
  EXPECT_LE(count, 140);
  EXPECT_EQ(std::ranges::count(erased, 1.0f), 400 - count);
}

std::vector<TransformOptions> everything() {
  return {RandomResizedCropOptions{.height = 9, .width = 8},
          FlipOptions{},
          PadCropOptions{2, 0},
          AffineOptions{.degrees = 20, .translate = 0.1, .scale_min = 0.8, .scale_max = 1.2, .shear = 5},
          ColorJitterOptions{0.4, 0.4, 0.4, 0.1},
          GrayscaleOptions{0.2},
          ResizeOptions{.height = 10, .width = 12},
          CenterCropOptions{8, 8},
          EraseOptions{},
          NormalizeOptions{{0.5}, {0.25}}};
}

TEST(TransformChain, DrawsFromTheKeyAlone) {
  const auto first = transformed(everything(), {5, 3, 9});
  transformed(everything(), {6, 3, 9});
  EXPECT_EQ(transformed(everything(), {5, 3, 9}), first);
  EXPECT_NE(transformed(everything(), {6, 3, 9}), first);
  EXPECT_NE(transformed(everything(), {5, 4, 9}), first);
  EXPECT_NE(transformed(everything(), {5, 3, 8}), first);
}

TEST(TransformChain, DrawsOtherNumbersForTheSameTransformTwice) {
  const GoldenPixels image{{5, 5, 1}, std::vector<float>(25, 1)};
  int both = 0, first = 0;
  for (int64_t sample = 0; sample < 400; ++sample) {
    const GoldenPixels row{{1, 2, 1}, {1, 2}};
    first += transformed({FlipOptions{0.5, 0}}, sample, row).front() == 2;
    both += transformed({FlipOptions{0.5, 0}, FlipOptions{0.5, 0}}, sample, row).front() == 2;
  }
  EXPECT_NEAR(first, 200, 50);
  EXPECT_NEAR(both, 200, 50);  // with equal numbers it would be 0
}

TEST(TransformChain, SaysWhatIsWrongWithItsOptions) {
  const auto refusal = [](const TransformOptions& options, const ImageShape& shape = {10, 10, 3}) {
    return message_of<ConfigError>([&] { TransformChain(std::vector{options}).output(shape); });
  };
  EXPECT_THAT(refusal(CenterCropOptions{11, 5}), HasSubstr("center_crop"));
  EXPECT_THAT(refusal(ResizeOptions{}), HasSubstr("resize"));
  EXPECT_THAT(refusal(RandomResizedCropOptions{.height = 2, .width = 2, .area_min = 0.5, .area_max = 0.4}),
              HasSubstr("area_min"));
  EXPECT_THAT(refusal(NormalizeOptions{{0, 0}, {1, 1}}), HasSubstr("normalize"));
  EXPECT_THAT(refusal(NormalizeOptions{{0}, {0}}), HasSubstr("deviation"));
  EXPECT_THAT(refusal(ColorJitterOptions{0.1}, {5, 5, 2}), HasSubstr("color_jitter"));
  EXPECT_THAT(refusal(FlipOptions{2, 0}), HasSubstr("flip"));
  EXPECT_THAT(refusal(EraseOptions{.aspect_min = 0}), HasSubstr("erase"));
  EXPECT_THAT(refusal(AffineOptions{.scale_min = 2, .scale_max = 1}), HasSubstr("scale_min"));
}

}  // namespace
}  // namespace lockstep::data
