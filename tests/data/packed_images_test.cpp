// Images that are packed and made on a GPU have the bits of those that a processor makes.

#include "data/packed_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "base/half.h"
#include "data/dataset.h"
#include "data/images/image_writer.h"
#include "data/packed_image_reader.h"
#include "data/test_files.h"
#include "data/transforms/chain.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "pixels/formulas.h"
#include "tensor/convert.h"

namespace lockstep::data {
namespace {

using test::message_of;
using test::PackedImageReader;

/// An image of bytes that lies in memory.
class Bytes : public PixelSource {
 public:
  Bytes(const ImageShape& shape, int seed) : shape_(shape), bytes_(static_cast<size_t>(shape.count())) {
    for (size_t i = 0; i < bytes_.size(); ++i)
      bytes_[i] = static_cast<uint8_t>((i * 2654435761u + static_cast<size_t>(seed) * 40503u) >> 7);
  }
  ImageShape shape() const override { return shape_; }
  bool has_bytes() const override { return true; }
  int64_t reduction(int64_t /*most*/) const override { return 1; }
  PixelView read(const Region& region, int64_t /*reduction*/) override {
    part_.clear();
    for (int64_t y = region.y; y < region.y + region.height; ++y) {
      const uint8_t* row = bytes_.data() + (y * shape_.width + region.x) * shape_.channels;
      part_.insert(part_.end(), row, row + region.width * shape_.channels);
    }
    return {.shape = {region.height, region.width, shape_.channels}, .bytes = part_.data()};
  }

 private:
  ImageShape shape_;
  std::vector<uint8_t> bytes_, part_;
};

bool has_gpu() { return !device::probe_gpus().devices.empty(); }
#define NEEDS_A_GPU \
  if (!has_gpu()) GTEST_SKIP() << "this needs a GPU: ONLY_SKIPPED_TESTS"

const std::vector<std::vector<TransformOptions>> kChains = {
    {},
    {FlipOptions{0.5, 0.5}},
    {RandomResizedCropOptions{.height = 9, .width = 14}, FlipOptions{}, NormalizeOptions{{0.4}, {0.3}}},
    {ResizeOptions{.shorter = 12}, CenterCropOptions{10, 11}, PadCropOptions{3, 0.25}, FlipOptions{0.5, 0.5},
     EraseOptions{.probability = 0.8, .value = 0.7}},
    {ResizeOptions{.height = 13, .width = 17, .filter = ResizeFilter::bicubic},
     ColorJitterOptions{0.4, 0.5, 0.6, 0.2}, PadCropOptions{2}, ColorJitterOptions{0.1, 0.9, 0, 0.5},
     GrayscaleOptions{0.3}, FlipOptions{}},
    {EraseOptions{.probability = 1}, ColorJitterOptions{0, 0.8, 0, 0}, GrayscaleOptions{1},
     ColorJitterOptions{0.5, 0, 0, 0}, EraseOptions{.probability = 1, .value = -1}},
    {CenterCropOptions{8, 8}, ResizeOptions{.height = 21, .width = 6}, NormalizeOptions{{0.5}, {0.25}}},
};

TEST(PackedImages, BecomeTheBitsOfTheChainsOwn) {
  NEEDS_A_GPU;
  for (const int64_t channels : {1, 3})
    for (size_t chain_number = 0; chain_number < kChains.size(); ++chain_number) {
      SCOPED_TRACE(testing::Message() << "chain " << chain_number << ", " << channels << " channels");
      const TransformChain chain(kChains[chain_number]);
      const ImageShape from{31, 23, channels}, to = chain.output(from);
      const ChainTail tail = chain.tail(to);
      const pixels::PackedLayout layout{.image = extent_of(to), .steps = tail.steps, .sums = tail.sums};
      constexpr int kSamples = 24;
      std::vector<float> expected(static_cast<size_t>(kSamples * to.count()));
      std::vector<std::byte> packed(static_cast<size_t>(kSamples * layout.sample_bytes()));
      for (int i = 0; i < kSamples; ++i) {
        Bytes source(from, i);
        const SampleKey key(i, 3, 11);
        chain.apply(key, source, expected.data() + i * to.count(), scratch_of_thread());
        const auto parts = layout.parts(packed.data() + i * layout.sample_bytes());
        chain.pack(key, source, parts.image, parts.steps, scratch_of_thread());
      }
      PackedImageReader gpu;
      EXPECT_EQ(gpu.expand<float>(layout, packed, DType::float32), expected);
      for (const DType type : {DType::bfloat16, DType::float16}) {
        std::vector<uint16_t> narrow(expected.size());
        tensor::convert(narrow.data(), type, expected.data(), DType::float32, std::ssize(expected));
        EXPECT_EQ(gpu.expand<uint16_t>(layout, packed, type), narrow);
      }
    }
}

/// Alphas near 1 mix much; the last transforms see what was mixed.
const std::vector<std::vector<TransformOptions>> kMixtures = {
    {RandomResizedCropOptions{.height = 16, .width = 12}, FlipOptions{},
     ColorJitterOptions{0.2, 0.4, 0.2, 0.1}, MixupOptions{.probability = 0.5},
     CutmixOptions{.probability = 0.4}, EraseOptions{}, ColorJitterOptions{0, 0.7, 0.3, 0},
     NormalizeOptions{{0.5, 0.4, 0.3}, {0.2, 0.3, 0.4}}},
    {ResizeOptions{.height = 8, .width = 9}, NormalizeOptions{{0.5}, {0.5}}, MixupOptions{}},
    {CutmixOptions{.alpha = 2}, FlipOptions{0.5, 0.5}, PadCropOptions{2, 0.5}},
};

class PackedSamples : public ::testing::Test {
 protected:
  PackedSamples() {
    for (int i = 0; i < 12; ++i) {
      const ImageShape shape{30, 40, 3};
      std::vector<uint8_t> bytes(static_cast<size_t>(shape.count()));
      for (size_t k = 0; k < bytes.size(); ++k)
        bytes[k] = static_cast<uint8_t>(k * static_cast<size_t>(i + 1) / 29);
      const std::string folder = directory_ / ("train/" + std::to_string(i % 3));
      std::filesystem::create_directories(folder);
      test::write_file(folder + "/" + std::to_string(i) + ".jpg", jpeg_bytes(shape, bytes));
    }
    options_.kind = DataKind::images;
    options_.directory = directory_.path();
    options_.images.train = "train";
    options_.images.eval = "train";
    options_.images.channels = 3;
  }

  test::TemporaryDirectory directory_;
  DataOptions options_;
};

TEST_F(PackedSamples, HaveTheBitsAndTheLabelsOfOthers) {
  NEEDS_A_GPU;
  for (const auto& transforms : kMixtures) {
    options_.transforms = transforms;
    if (const auto* resize = std::get_if<RandomResizedCropOptions>(&transforms[0]))
      options_.eval_transforms = {ResizeOptions{.height = resize->height, .width = resize->width}};
    else
      options_.eval_transforms = std::holds_alternative<ResizeOptions>(transforms[0])
                                     ? std::vector{transforms[0], transforms[1]}
                                     : std::vector<TransformOptions>{};
    const DatasetPair data = open_datasets(options_);
    const Shape& shape = data.train->fields()[0].spec.shape;
    PackedImageReader gpu;
    for (const auto& [dataset, training] :
         {std::pair(data.train.get(), true), std::pair(data.eval.get(), false)}) {
      const auto packed = dataset->packed();
      ASSERT_TRUE(packed);
      // What is planned without the data.
      EXPECT_EQ(packed->layout, packed_layout(options_, {shape[0], shape[1], shape[2]}, training));
      int mixed = 0;
      for (int64_t sample = 0; sample < 12; ++sample)
        for (int64_t epoch = 0; epoch < 4; ++epoch) {
          const SampleKey key(sample, epoch, 5);
          const auto expected = gpu.read(*dataset, key), found = gpu.read_packed(*dataset, key);
          ASSERT_EQ(found.label, expected.label);
          ASSERT_EQ(found.mixture, expected.mixture);
          ASSERT_EQ(found.image, expected.image) << "sample " << sample << ", epoch " << epoch;
          mixed += found.mixture[1] > 0;
        }
      EXPECT_EQ(mixed > 0, training);
    }
  }
}

TEST_F(PackedSamples, ReplaceDamagedOnesLikeOthers) {
  NEEDS_A_GPU;
  options_.transforms = {CenterCropOptions{30, 40}, FlipOptions{}};
  options_.on_damage = DamagePolicy::skip;
  const std::string file = directory_ / "train/1/4.jpg";
  auto bytes = test::read_file(file);
  bytes.resize(bytes.size() / 2);
  test::write_file(file, bytes);
  const auto data = open_datasets(options_).train;
  PackedImageReader gpu;
  for (int64_t sample = 0; sample < 12; ++sample) {
    const auto expected = gpu.read(*data, sample), found = gpu.read_packed(*data, sample);
    EXPECT_EQ(found.label, expected.label);
    EXPECT_EQ(found.image, expected.image);
  }
  EXPECT_EQ(data->damage().replaced.size(), 1u);
}

TEST_F(PackedSamples, AreRefusedByTheNameOfWhatGpusCannotDo) {
  const auto refusal = [&](std::vector<TransformOptions> transforms) {
    options_.transforms = std::move(transforms);
    return message_of<ConfigError>([&] { packed_layout(options_, {8, 8, 3}, true); });
  };
  EXPECT_THAT(refusal({AffineOptions{}}), Mentions("data.transforms_on ... data.transforms ... affine"));
  EXPECT_THAT(refusal({FlipOptions{}, ResizeOptions{.height = 8, .width = 8}}), Mentions("resize ... flip"));
  EXPECT_THAT(refusal({MixupOptions{}, CenterCropOptions{8, 8}}), Mentions("center_crop"));
  options_.eval_transforms = {AffineOptions{}};
  EXPECT_THAT(message_of<ConfigError>([&] {
                packed_layout(options_, {8, 8, 3}, false);
              }),
              Mentions("data.eval_transforms ... affine"));
}

TEST(PackedImages, OfOtherDataThereAreNone) {
  const DataOptions synthetic{.kind = DataKind::synthetic, .samples = 4, .classes = 2, .shape = "4,4,1"};
  EXPECT_FALSE(open_datasets(synthetic).train->packed());
  DataOptions transformed = synthetic;
  transformed.transforms = {FlipOptions{}};
  EXPECT_FALSE(open_datasets(transformed).train->packed());
}

TEST(Pixels, BytesStayBytes) {
  for (int byte = 0; byte < 256; ++byte)
    EXPECT_EQ(pixels::byte_of(pixels::value_of(static_cast<uint8_t>(byte))), byte);
  EXPECT_EQ(pixels::byte_of(-0.1f), 0);
  EXPECT_EQ(pixels::byte_of(1.2f), 255);
  EXPECT_EQ(pixels::byte_of(100.4f / 255), 100);
  EXPECT_EQ(pixels::byte_of(100.6f / 255), 101);
}

}  // namespace
}  // namespace lockstep::data
