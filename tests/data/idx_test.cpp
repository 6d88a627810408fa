#include "data/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "data/gzip_bytes.h"
#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::data {
namespace {

using test::Bytes;
using test::gzip;
using test::message_of;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Three images of 1 x 2 pixels, and their labels, byte by byte.
const Bytes kImages{0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 255, 51, 102, 7, 8};
const Bytes kLabels{0, 0, 8, 1, 0, 0, 0, 3, 4, 0, 9};

class Idx : public ::testing::Test {
 protected:
  DataOptions options_for(const Bytes& images, const Bytes& labels) {
    write_file(folder_ / "images", images);
    write_file(folder_ / "labels", labels);
    DataOptions options;
    options.kind = DataKind::idx;
    options.directory = folder_.path();
    options.train_images = options.eval_images = "images";
    options.train_labels = options.eval_labels = "labels";
    return options;
  }
  std::string refusal(const Bytes& images, const Bytes& labels) {
    const auto options = options_for(images, labels);
    return message_of<DataError>([&] { open_datasets(options); });
  }
  Bytes images_with(size_t at, uint8_t value) {
    Bytes bytes = kImages;
    bytes[at] = value;
    return bytes;
  }
  TemporaryDirectory folder_;
};

TEST_F(Idx, TellsWhereItsLargestLabelStands) {
  const auto options = options_for(kImages, kLabels);
  const auto largest = open_datasets(options).train->largest(kLabelField, -1);
  EXPECT_EQ(largest.value, 9);
  EXPECT_EQ(largest.place, "label 9 of sample 2 in " + (folder_ / "labels"));
}

TEST_F(Idx, LabelsThatAreIgnoredOrLeftOutAreNotItsLargest) {
  auto options = options_for(kImages, kLabels);
  EXPECT_LT(open_datasets(options).train->largest(kLabelField, 9).value, 9);
  options.train_range = {0, 2};
  const auto data = open_datasets(options);
  EXPECT_LT(data.train->largest(kLabelField, -1).value, 9);
  EXPECT_LT(data.train->classes(), 10);
  EXPECT_EQ(data.eval->largest(kLabelField, -1).value, 9);
  Bytes all_ignored = kLabels;
  std::fill(all_ignored.end() - 3, all_ignored.end(), uint8_t{255});
  EXPECT_EQ(open_datasets(options_for(kImages, all_ignored)).train->largest(kLabelField, 255).value, -1);
}

TEST_F(Idx, ReadsSamplesAndNormalisesPixels) {
  auto options = options_for(kImages, kLabels);
  options.mean = 0.2;
  options.deviation = 0.5;
  options.eval_range = {1, 2};
  const auto data = open_datasets(options);
  ASSERT_EQ(data.train->size(), 3);
  EXPECT_EQ(data.train->classes(), 10);
  EXPECT_EQ(data.train->fields(), (std::vector<Field>{{"image", {Shape{1, 2, 1}, DType::float32}},
                                                      {"label", {Shape{}, DType::int32}}}));
  float pixels[2];
  int32_t label = 0;
  std::byte* const destinations[] = {reinterpret_cast<std::byte*>(pixels),
                                     reinterpret_cast<std::byte*>(&label)};
  data.train->read(0, destinations);
  EXPECT_FLOAT_EQ(pixels[0], -0.4f);  // (0 - 0.2) / 0.5
  EXPECT_FLOAT_EQ(pixels[1], 1.6f);   // (1 - 0.2) / 0.5
  EXPECT_EQ(label, 4);

  ASSERT_EQ(data.eval->size(), 1);  // sample 1 of the file
  std::byte* const without_label[] = {reinterpret_cast<std::byte*>(pixels), nullptr};
  data.eval->read(0, without_label);
  EXPECT_FLOAT_EQ(pixels[0], 0.0f);  // (51 / 255 - 0.2) / 0.5
  EXPECT_FLOAT_EQ(pixels[1], 0.4f);
  EXPECT_EQ(label, 4) << "a null destination is skipped";
}

TEST_F(Idx, WritesWhatItReads) {
  const int64_t dims[] = {3, 1, 2};
  const Bytes values{0, 255, 51, 102, 7, 8};
  EXPECT_EQ(idx_bytes(dims, values), kImages);
  write_file(folder_ / "written", kImages);
  const auto array = read_idx(folder_ / "written", 3);
  EXPECT_THAT(array.dims, ElementsAre(3, 1, 2));
  EXPECT_EQ(array.values, values);
}

TEST_F(Idx, GzipIsToldByContentAndChangesNothing) {
  const auto plain = open_datasets(options_for(kImages, kLabels)).train->identity();
  const auto packed = options_for(gzip(kImages), gzip(kLabels));
  EXPECT_EQ(open_datasets(packed).train->identity(), plain);
}

TEST_F(Idx, IdentityTellsContentSelectionAndNormalisationApart) {
  auto options = options_for(kImages, kLabels);
  const auto identity = open_datasets(options).train->identity();
  EXPECT_EQ(open_datasets(options).eval->identity(), identity) << "the same samples";
  auto other = options;
  other.train_range = {0, 2};
  EXPECT_NE(open_datasets(other).train->identity(), identity);
  other = options;
  other.mean = 0.1;
  EXPECT_NE(open_datasets(other).train->identity(), identity);
  EXPECT_NE(open_datasets(options_for(images_with(20, 9), kLabels)).train->identity(), identity);
  Bytes labels = kLabels;
  labels[8] = 5;
  EXPECT_NE(open_datasets(options_for(kImages, labels)).train->identity(), identity);
}

TEST_F(Idx, RefusesEveryTruncation) {
  for (size_t size = 0; size < kImages.size(); ++size)
    EXPECT_THAT(refusal(Bytes(kImages.begin(), kImages.begin() + static_cast<long>(size)), kLabels),
                HasSubstr("truncated"))
        << size;
}

TEST_F(Idx, RefusesEveryTruncationOfGzip) {
  const Bytes packed = gzip(kImages);
  for (size_t size = 2; size < packed.size(); ++size)
    EXPECT_THAT(refusal(Bytes(packed.begin(), packed.begin() + static_cast<long>(size)), kLabels),
                HasSubstr("truncated"))
        << size;
}

TEST_F(Idx, RefusesOrSurvivesEveryBitFlipOfGzip) {
  const Bytes packed = gzip(kImages);
  const auto identity = open_datasets(options_for(packed, kLabels)).train->identity();
  for (size_t bit = 0; bit < 8 * packed.size(); ++bit) {
    Bytes damaged = packed;
    damaged[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    const auto options = options_for(damaged, kLabels);
    try {  // flips in the header's time stamp or system byte are harmless
      EXPECT_EQ(open_datasets(options).train->identity(), identity) << bit;
    } catch (const DataError&) {
    }
  }
}

TEST_F(Idx, RefusesBytesBehindTheEnd) {
  Bytes longer = kImages;
  longer.push_back(0);
  EXPECT_THAT(refusal(longer, kLabels), HasSubstr("more bytes"));
  EXPECT_THAT(refusal(gzip(longer), kLabels), HasSubstr("more bytes"));
  Bytes packed = gzip(kImages);
  packed.push_back(0);
  EXPECT_THAT(refusal(packed, kLabels), HasSubstr("gzip"));
}

TEST_F(Idx, RefusesForeignMagicNamingBoth) {
  const auto message = refusal(kLabels, kLabels);
  EXPECT_THAT(message, HasSubstr("0x00000803"));
  EXPECT_THAT(message, HasSubstr("0x00000801"));
  EXPECT_THAT(message, HasSubstr("images"));  // the file's name
  EXPECT_THAT(refusal(images_with(2, 0x0d), kLabels), HasSubstr("0x00000d03"));
}

TEST_F(Idx, RefusesAbsurdDimensionsWithoutTakingMemory) {
  Bytes absurd = kImages;
  for (size_t i = 4; i < 16; ++i) absurd[i] = 0xff;  // 2^96 values
  EXPECT_THAT(refusal(absurd, kLabels), HasSubstr("4294967295"));
  EXPECT_THAT(refusal(images_with(4, 0x7f), kLabels), Mentions("header ... damaged"));
  EXPECT_THAT(refusal(gzip(images_with(4, 0x7f)), kLabels), Mentions("header ... damaged"));
  EXPECT_THAT(refusal(images_with(11, 0), kLabels), HasSubstr("one value"));
}

TEST_F(Idx, RefusesAnotherNumberOfLabels) {
  const auto message = refusal(kImages, {0, 0, 8, 1, 0, 0, 0, 2, 4, 0});
  EXPECT_THAT(message, HasSubstr("expected 3 labels"));
  EXPECT_THAT(message, HasSubstr("found 2"));
}

TEST_F(Idx, RefusesRangesOutsideTheFile) {
  for (const SampleRange range :
       {SampleRange{0, 4}, SampleRange{3, -1}, SampleRange{-1, 2}, SampleRange{2, 2}, SampleRange{2, 1}}) {
    auto options = options_for(kImages, kLabels);
    options.eval_range = range;
    EXPECT_THAT(message_of<DataError>([&] { open_datasets(options); }), HasSubstr("eval_range"));
  }
}

TEST_F(Idx, RefusesEvaluationImagesOfAnotherSize) {
  auto options = options_for(kImages, kLabels);
  write_file(folder_ / "other", images_with(11, 2));
  Bytes taller{0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6};
  write_file(folder_ / "other", taller);
  options.eval_images = "other";
  EXPECT_THAT(message_of<DataError>([&] { open_datasets(options); }), HasSubstr("found 2x1"));
}

TEST_F(Idx, NamesAFileThatIsNotThere) {
  auto options = options_for(kImages, kLabels);
  options.train_images = "absent";
  EXPECT_THAT(message_of<IoError>([&] { open_datasets(options); }), HasSubstr("absent: No such file"));
  options.train_images = ".";
  EXPECT_THAT(message_of<IoError>([&] { open_datasets(options); }), HasSubstr("not a regular file"));
  options.train_images = "";
  EXPECT_THAT(message_of<ConfigError>([&] { open_datasets(options); }), HasSubstr("train_images"));
}

TEST_F(Idx, MayHaveNothingToEvaluateOn) {
  auto options = options_for(kImages, kLabels);
  options.eval_images = options.eval_labels = "";
  const auto data = open_datasets(options);
  EXPECT_GT(data.train->size(), 0);
  EXPECT_EQ(data.eval, nullptr);
  options.eval_labels = "x";
  EXPECT_THAT(message_of<ConfigError>([&] { open_datasets(options); }),
              Mentions("eval_images ... eval_labels"));
}

TEST_F(Idx, RefusesADeviationOfZero) {
  auto options = options_for(kImages, kLabels);
  options.deviation = 0;
  EXPECT_THROW(open_datasets(options), ConfigError);
}

TEST_F(Idx, TakesColors) {
  const Bytes colors{0, 0, 8, 4, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 255, 51, 102, 7, 8};
  const auto data = open_idx_datasets(options_for(colors, kLabels));
  EXPECT_EQ(data.train->fields()[0].spec.shape, (Shape{1, 1, 2}));
  float pixel[2];
  std::byte* destinations[] = {reinterpret_cast<std::byte*>(pixel), nullptr};
  data.train->read(1, destinations);
  EXPECT_FLOAT_EQ(pixel[0] * 255, 51);
  EXPECT_FLOAT_EQ(pixel[1] * 255, 102);
  EXPECT_NE(data.train->identity(), open_idx_datasets(options_for(kImages, kLabels)).train->identity());
}

TEST_F(Idx, CountsLabelsFromAnOffset) {
  auto options = options_for(kImages, {0, 0, 8, 1, 0, 0, 0, 3, 1, 26, 2});
  options.label_offset = 1;
  const auto data = open_idx_datasets(options);
  EXPECT_EQ(data.train->classes(), 26);
  options.label_offset = 2;
  EXPECT_THAT(message_of<DataError>([&] { open_idx_datasets(options); }), HasSubstr("label_offset"));
}

TEST_F(Idx, LeavesOutSamplesWithoutAClassAndCountsThem) {
  auto options = options_for(kImages, {0, 0, 8, 1, 0, 0, 0, 3, 1, 0, 3});
  options.label_offset = 1;
  EXPECT_THAT(message_of<DataError>([&] { open_datasets(options); }),
              Mentions("labels ... sample 1 ... byte 9"));
  options.on_damage = DamagePolicy::skip;
  const auto data = open_datasets(options);
  ASSERT_EQ(data.train->size(), 2);
  EXPECT_EQ(data.train->damage().left_out, 1);
  EXPECT_THAT(data.train->largest(kLabelField, -1).place, HasSubstr("sample 2"));
  options.idx_classes = 2;
  const auto fewer = open_datasets(options);
  EXPECT_EQ(fewer.train->size(), 1);
  EXPECT_EQ(fewer.train->classes(), 2);
  EXPECT_EQ(fewer.eval->damage().left_out, 2);
  options.train_range = {1, 2};
  EXPECT_THAT(message_of<DataError>([&] { open_datasets(options); }), HasSubstr("train_range"));
}

/// Images of one pixel, which is the sample's number; classes take turns.
DataOptions numbered(const TemporaryDirectory& folder, uint8_t count) {
  Bytes images{0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 1, 0, 0, 0, 1}, labels{0, 0, 8, 1, 0, 0, 0, count};
  for (uint8_t i = 0; i < count; ++i) {
    images.push_back(i);
    labels.push_back(i % 2);
  }
  write_file(folder / "images", images);
  write_file(folder / "labels", labels);
  DataOptions options;
  options.kind = DataKind::idx;
  options.directory = folder.path();
  options.train_images = "images";
  options.train_labels = "labels";
  return options;
}

std::vector<int> numbers_in(const Dataset& data) {
  std::vector<int> numbers;
  for (int64_t sample = 0; sample < data.size(); ++sample) {
    float pixel = -1;
    int32_t label = -1;
    std::byte* destinations[] = {reinterpret_cast<std::byte*>(&pixel), reinterpret_cast<std::byte*>(&label)};
    data.read(sample, destinations);
    numbers.push_back(static_cast<int>(pixel * 255 + 0.5f));
    EXPECT_EQ(label, numbers.back() % 2);
  }
  return numbers;
}

TEST_F(Idx, DividesByASeed) {
  auto options = numbered(folder_, 40);
  options.eval_fraction = 0.25;
  options.train_range = {0, 32};
  const auto data = open_datasets(options);
  const auto train = numbers_in(*data.train), eval = numbers_in(*data.eval);
  EXPECT_EQ(train.size(), 24u);
  EXPECT_EQ(std::ranges::count_if(eval, [](int number) { return number % 2 == 1; }), 4)
      << "of each class a quarter";
  std::set<int> all(train.begin(), train.end());
  all.insert(eval.begin(), eval.end());
  EXPECT_EQ(all.size(), 32u);
  EXPECT_EQ(*all.rbegin(), 31);
  EXPECT_EQ(open_datasets(options).eval->identity(), data.eval->identity());
  options.split_seed = 9;
  const auto other = open_datasets(options);
  EXPECT_NE(numbers_in(*other.eval), eval);
  EXPECT_NE(other.eval->identity(), data.eval->identity());
  EXPECT_NE(other.train->identity(), data.train->identity());
  options.split_seed = 1;
  options.trains = false;
  EXPECT_EQ(open_datasets(options).eval->identity(), data.eval->identity());
}

TEST_F(Idx, EvaluatesOnAList) {
  auto options = numbered(folder_, 6);
  write_file(folder_ / "list", "4\n1\n");
  options.eval_list = "list";
  const auto data = open_datasets(options);
  EXPECT_THAT(numbers_in(*data.train), ElementsAre(0, 2, 3, 5));
  EXPECT_THAT(numbers_in(*data.eval), ElementsAre(1, 4));
  EXPECT_NE(data.train->identity(), data.eval->identity());
  write_file(folder_ / "list", "6\n");
  EXPECT_THAT(message_of<DataError>([&] { open_datasets(options); }), Mentions("list ... '6'"));
  options.train_range = {1, 5};
  for (const char* number : {"0", "5"}) {
    write_file(folder_ / "list", std::string(number) + "\n2\n");
    EXPECT_THAT(message_of<DataError>([&] { open_datasets(options); }),
                Mentions("list ... train_range ... " + std::string(number)));
  }
  options.train_range = {};
  options.eval_images = "images";
  options.eval_labels = "labels";
  EXPECT_THROW(open_datasets(options), ConfigError);
}

// What a range was before there were lists: checkpoints know its identity.
TEST_F(Idx, AListOfARangeIsThatRange) {
  auto options = numbered(folder_, 6);
  write_file(folder_ / "list", "4\n5\n");
  options.eval_list = "list";
  const auto listed = open_datasets(options);
  options.eval_list = "";
  options.train_range = {0, 4};
  options.eval_images = "images";
  options.eval_labels = "labels";
  options.eval_range = {4, 6};
  const auto ranges = open_datasets(options);
  EXPECT_EQ(listed.train->identity(), ranges.train->identity());
  EXPECT_EQ(listed.eval->identity(), ranges.eval->identity());
}

TEST_F(Idx, ExchangesRowsAndColumns) {
  auto options = options_for({0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6},
                             {0, 0, 8, 1, 0, 0, 0, 1, 0});
  options.transposed = true;
  const auto data = open_idx_datasets(options);
  EXPECT_EQ(data.train->fields()[0].spec.shape, (Shape{3, 2, 1}));
  float pixels[6];
  std::byte* destinations[] = {reinterpret_cast<std::byte*>(pixels), nullptr};
  data.train->read(0, destinations);
  for (float& pixel : pixels) pixel *= 255;
  EXPECT_THAT(pixels, ::testing::Pointwise(::testing::FloatEq(), {1.0f, 4.0f, 2.0f, 5.0f, 3.0f, 6.0f}));
}

TEST_F(Idx, NormalizesAfterTransforms) {
  auto options = options_for(kImages, kLabels);
  options.kind = DataKind::idx;
  options.mean = 0.5;
  options.deviation = 0.25;
  options.transforms = {PadCropOptions{1, 1}, FlipOptions{}};
  const auto data = open_datasets(options);
  float pixels[2];
  std::byte* destinations[] = {reinterpret_cast<std::byte*>(pixels), nullptr};
  std::set<float> seen;
  for (int64_t epoch = 0; epoch < 50; ++epoch) {
    data.train->read({0, epoch, 1}, destinations);
    seen.insert(pixels, pixels + 2);
  }
  EXPECT_THAT(seen, ElementsAre(-2.0f, 2.0f));  // (0 - 0.5) / 0.25, and that of white and the border
}

}  // namespace
}  // namespace lockstep::data
