#include "data/transforms/mixing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

#include "data/dataset.h"
#include "data/test_files.h"
#include "data/transforms/mixed_dataset.h"
#include "data/transforms/wrapped_dataset.h"
#include "lockstep/error.h"
#include "lockstep/ops.h"

namespace lockstep::data {
namespace {

using test::message_of;
using ::testing::HasSubstr;

constexpr ImageShape kImage{6, 8, 3};

std::optional<Mixing> draw(const TransformOptions& transform, const SampleKey& key, int64_t samples = 10) {
  return draw_mixing(*cut_at_mixing(std::array{transform}).mixing, key, samples, kImage);
}

TEST(Mixing, CutsTheListInTwo) {
  const std::vector<TransformOptions> list = {FlipOptions{}, CutmixOptions{.probability = 0.3},
                                              MixupOptions{.probability = 0.7}, EraseOptions{}};
  const TransformList cut = cut_at_mixing(list);
  EXPECT_EQ(cut.before, (std::vector<TransformOptions>{FlipOptions{}}));
  EXPECT_EQ(cut.after, (std::vector<TransformOptions>{EraseOptions{}}));
  EXPECT_EQ(cut.mixing->place, 1u);
  EXPECT_EQ(cut.place_after, 3u);
  EXPECT_FALSE(cut_at_mixing(cut.before).mixing);
}

TEST(Mixing, RefusesListsThatMakeNoSense) {
  const auto refusal = [](const std::vector<TransformOptions>& list) {
    return message_of<ConfigError>([&] { cut_at_mixing(list); });
  };
  const MixupOptions half{.probability = 0.5};
  EXPECT_THAT(refusal({half, half}), HasSubstr("mixup"));
  EXPECT_THAT(refusal({half, FlipOptions{}, CutmixOptions{.probability = 0.5}}), HasSubstr("cutmix"));
  EXPECT_THAT(refusal({MixupOptions{}, CutmixOptions{}}), HasSubstr("probabilities"));
  EXPECT_THAT(refusal({MixupOptions{.alpha = 0}}), HasSubstr("mixup.alpha"));
  EXPECT_THAT(refusal({CutmixOptions{.probability = 1.5}}), HasSubstr("cutmix.probability"));
}

TEST(Mixing, IsDrawnFromTheKeyAlone) {
  const auto first = draw(MixupOptions{}, {5, 3, 9});
  EXPECT_EQ(draw(MixupOptions{}, {5, 3, 9}), first);
  EXPECT_NE(draw(MixupOptions{}, {6, 3, 9}), first);
  EXPECT_NE(draw(MixupOptions{}, {5, 4, 9}), first);
  EXPECT_NE(draw(MixupOptions{}, {5, 3, 8}), first);
}

TEST(Mixing, PartnersAreAllOtherSamples) {
  std::set<int64_t> partners;
  for (int64_t epoch = 0; epoch < 200; ++epoch)
    partners.insert(draw(CutmixOptions{}, {7, epoch, 1}, 9)->partner);
  EXPECT_EQ(partners, (std::set<int64_t>{0, 1, 2, 3, 4, 5, 6, 8}));
  EXPECT_EQ(draw(CutmixOptions{}, 0, 1)->partner, 0);
}

TEST(Mixing, HappensAsOftenAsItsProbabilitiesSay) {
  MixingOptions both{.mixup = MixupOptions{.probability = 0.2}, .cutmix = CutmixOptions{.probability = 0.5}};
  int mixups = 0, cutmixes = 0;
  for (int64_t sample = 0; sample < 4000; ++sample) {
    const auto mixing = draw_mixing(both, sample, 4000, kImage);
    mixups += mixing && !mixing->is_box;
    cutmixes += mixing && mixing->is_box;
  }
  EXPECT_NEAR(mixups, 800, 120);
  EXPECT_NEAR(cutmixes, 2000, 150);
}

// Beta(a, a) has the mean 1/2 and the variance 1 / (4 (2 a + 1)).
TEST(Mixing, SharesAreFromABetaDistribution) {
  for (const double alpha : {0.1, 0.4, 1.0, 2.5, 100.0}) {
    constexpr int kDraws = 20000;
    double sum = 0, squares = 0;
    for (int64_t sample = 0; sample < kDraws; ++sample) {
      const double share = draw_beta(SampleDraws(sample, 3), 16, alpha);
      ASSERT_TRUE(share >= 0 && share <= 1) << share;
      sum += share;
      squares += (share - 0.5) * (share - 0.5);
    }
    const double variance = 1 / (4 * (2 * alpha + 1));
    EXPECT_NEAR(sum / kDraws, 0.5, 5 * std::sqrt(variance / kDraws)) << alpha;
    EXPECT_NEAR(squares / kDraws, variance, 0.06 * variance) << alpha;
  }
}

TEST(Mixing, AlphasNearZeroTakeOneImageOrTheOther) {
  for (int64_t sample = 0; sample < 300; ++sample) {
    const double share = draw_beta(SampleDraws(sample, 0), 16, 0.001);
    EXPECT_TRUE(share < 0.1 || share > 0.9) << share;
  }
}

TEST(Mixing, LabelsOfCutmixGoByTheAreaThatRemains) {
  std::set<int64_t> areas;
  for (int64_t sample = 0; sample < 300; ++sample) {
    const auto mixing = draw(CutmixOptions{}, sample);
    const Region& box = mixing->box;
    ASSERT_TRUE(box.y >= 0 && box.x >= 0 && box.height >= 0 && box.width >= 0);
    ASSERT_TRUE(box.y + box.height <= kImage.height && box.x + box.width <= kImage.width);
    const int64_t area = box.height * box.width;
    EXPECT_EQ(mixing->mixture, std::lround(static_cast<double>(area) / 48 * kWholeShare));
    areas.insert(area);
  }
  EXPECT_GT(areas.size(), 10u);
}

TEST(Mixing, ImagesAreAveragedOrCutOut) {
  std::vector<float> image{1, 2, 3, 4};
  const std::vector<float> partner{5, 6, 7, 8};
  mix_images({.mixture = kWholeShare / 4}, {2, 2, 1}, partner.data(), image.data());
  EXPECT_EQ(image, (std::vector<float>{2, 3, 4, 5}));
  mix_images({.is_box = true, .box = {.y = 0, .x = 1, .height = 2, .width = 1}}, {2, 2, 1}, partner.data(),
             image.data());
  EXPECT_EQ(image, (std::vector<float>{2, 6, 4, 8}));
}

DataOptions synthetic(std::vector<TransformOptions> transforms) {
  return {.kind = DataKind::synthetic,
          .samples = 12,
          .eval_samples = 4,
          .classes = 5,
          .shape = "4,4,2",
          .transforms = std::move(transforms)};
}

struct Sample {
  std::vector<float> image = std::vector<float>(32);
  int32_t label = -7;
  std::array<int32_t, 2> mixture{-7, -7};
};
Sample read(const Dataset& data, const SampleKey& key) {
  Sample sample;
  const std::array<std::byte*, 3> to{reinterpret_cast<std::byte*>(sample.image.data()),
                                     reinterpret_cast<std::byte*>(&sample.label),
                                     reinterpret_cast<std::byte*>(sample.mixture.data())};
  data.read(key, std::span(to.data(), data.fields().size()));
  return sample;
}

TEST(MixedSamples, AreTwoOfTheSamplesBelow) {
  const auto plain = open_datasets(synthetic({FlipOptions{}})),
             mixed = open_datasets(synthetic({FlipOptions{}, MixupOptions{.alpha = 0.5}}));
  ASSERT_EQ(mixed.train->fields().size(), 3u);
  EXPECT_EQ(mixed.train->fields()[2], (Field{std::string(kLabelMixField), {Shape{2}, DType::int32}}));
  for (int64_t i = 0; i < 12; ++i) {
    const SampleKey key{i, 2, 5};
    const auto mixing = draw_mixing({.mixup = MixupOptions{.alpha = 0.5}, .place = 1}, key, 12, {4, 4, 2});
    const Sample own = read(*plain.train, key), other = read(*plain.train, {mixing->partner, 2, 5}),
                 found = read(*mixed.train, key);
    EXPECT_EQ(found.label, own.label);
    EXPECT_EQ(found.mixture,
              (std::array<int32_t, 2>{mixing->mixture > 0 ? other.label : 0, mixing->mixture}));
    const float share = static_cast<float>(mixing->mixture) / kWholeShare;
    for (size_t k = 0; k < 32; ++k)
      EXPECT_NEAR(found.image[k], (1 - share) * own.image[k] + share * other.image[k], 1e-6f);
  }
}

TEST(MixedSamples, AreWholeInEvaluations) {
  const auto plain = open_datasets(synthetic({})), mixed = open_datasets(synthetic({CutmixOptions{}}));
  for (int64_t i = 0; i < 4; ++i) {
    const Sample found = read(*mixed.eval, i);
    EXPECT_EQ(found.image, read(*plain.eval, i).image);
    EXPECT_EQ(found.mixture, (std::array<int32_t, 2>{0, 0}));
  }
}

/// Counts what is read.
class CountingDataset : public WrappedDataset {
 public:
  explicit CountingDataset(std::shared_ptr<const Dataset> base) : WrappedDataset(std::move(base)) {}
  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    ++reads;
    base_->read(key, destinations);
  }
  mutable int reads = 0;
};

TEST(MixedSamples, ReadNoPartnerThatGetsNoShare) {
  const auto counting = std::make_shared<const CountingDataset>(open_datasets(synthetic({})).train);
  // Of which most shares are 0 or 1 to 2^-24.
  const MixingOptions options{.mixup = MixupOptions{.alpha = 0.01}};
  const auto mixed = mix_samples(counting, options);
  int expected = 0, without = 0;
  for (int64_t i = 0; i < 12; ++i)
    for (int64_t epoch = 0; epoch < 10; ++epoch) {
      const SampleKey key{i, epoch, 5};
      const bool has_share = draw_mixing(options, key, 12, {4, 4, 2})->mixture > 0;
      expected += has_share ? 2 : 1;
      without += !has_share;
      const Sample found = read(*mixed, key);
      if (has_share) continue;
      EXPECT_EQ(found.image, read(*counting, key).image);
      EXPECT_EQ(found.mixture, (std::array<int32_t, 2>{0, 0}));
      --counting->reads;
    }
  EXPECT_GT(without, 20);
  EXPECT_EQ(counting->reads, expected);
}

TEST(MixedSamples, DrawTheSameForTransformsAfterThem) {
  // Without mixing, a transform keeps the numbers of its place.
  const auto plain = open_datasets(synthetic({FlipOptions{}, FlipOptions{0, 0}, EraseOptions{}})),
             mixed =
                 open_datasets(synthetic({FlipOptions{}, MixupOptions{.probability = 0}, EraseOptions{}}));
  for (int64_t i = 0; i < 12; ++i)
    EXPECT_EQ(read(*mixed.train, {i, 1, 3}).image, read(*plain.train, {i, 1, 3}).image);
}

TEST(MixedSamples, AreNotEvaluatedAndNeedImagesWithClasses) {
  DataOptions options = synthetic({});
  options.eval_transforms = {MixupOptions{}};
  EXPECT_THAT(message_of<ConfigError>([&] { open_datasets(options); }), HasSubstr("mixup"));
  options = synthetic({CutmixOptions{}});
  options.shape = "8";
  EXPECT_THAT(message_of<ConfigError>([&] { open_datasets(options); }), HasSubstr("cutmix"));
}

}  // namespace
}  // namespace lockstep::data
