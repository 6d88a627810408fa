#include "data/own_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "data/test_files.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Ints = std::vector<int32_t>;

Samples two_fields() {
  return Samples::in_memory({{"word", {2}, Ints{1, 4, 0, 2, 3, 3}},
                             {"author", {}, Ints{100, 7, 99}},
                             {"weight", {2}, std::vector<float>{1, 2, 3, 4, 5, 6}},
                             {"label", {}, Ints{-1, 2, 0}}});
}

SampleSource counted(int64_t count) {
  return {.fields = {{"word", {{}, DType::int32}}, {"label", {{}, DType::int32}}},
          .count = count,
          .classes = 3,
          .vocabulary = 5,
          .read =
              [](int64_t sample, std::span<std::byte* const> to) {
                for (std::byte* field : to)
                  if (field != nullptr) *reinterpret_cast<int32_t*>(field) = static_cast<int32_t>(sample);
              },
          .identity = "numbers"};
}

TEST(OwnSamples, InMemoryAreReadAsTheyWereHandedOver) {
  const Samples samples = two_fields();
  EXPECT_EQ(samples.count(), 3);
  EXPECT_EQ(Samples().count(), 0);
  const auto data = SamplesAccess::dataset_of(samples);
  Ints words(2), authors(1);
  std::vector<float> weights(2);
  std::byte* const to[] = {reinterpret_cast<std::byte*>(words.data()),
                           reinterpret_cast<std::byte*>(authors.data()),
                           reinterpret_cast<std::byte*>(weights.data()), nullptr};
  data->read(1, to);
  EXPECT_THAT(words, ElementsAre(0, 2));
  EXPECT_THAT(authors, ElementsAre(7));
  EXPECT_THAT(weights, ElementsAre(3, 4));
}

TEST(OwnSamples, EachFieldHasAVocabularyOfItsOwn) {
  const auto data = SamplesAccess::dataset_of(two_fields());
  EXPECT_EQ(data->vocabulary("word"), 5);
  EXPECT_EQ(data->vocabulary("author"), 101);
  EXPECT_EQ(data->vocabulary("label"), 3);
  EXPECT_EQ(data->classes(), 3);
  EXPECT_EQ(data->largest("label", -1).value, 2);
  EXPECT_EQ(data->largest("label", -1).place, "label 2 of sample 1");
  EXPECT_EQ(data->largest("label", 2).value, 0);
  EXPECT_EQ(data->largest("author", 100).value, 99);
  const auto made = SamplesAccess::dataset_of(Samples::from(counted(3)));
  EXPECT_EQ(made->vocabulary("word"), 5);
  EXPECT_EQ(made->vocabulary("label"), 3);
  EXPECT_EQ(made->largest("label", -1).value, 2);
  EXPECT_EQ(made->largest("label", 2).value, 1);
}

TEST(OwnSamples, LabelsMayHaveAnyNegativeValue) {
  const auto data = SamplesAccess::dataset_of(Samples::in_memory({{"label", {}, Ints{-100, 1, -1}}}));
  EXPECT_EQ(data->largest("label", -100).value, 1);
  EXPECT_EQ(data->classes(), 2);
}

TEST(OwnSamples, IdentityIsThatOfTheContents) {
  const auto identity = [](const Samples& samples) { return SamplesAccess::dataset_of(samples)->identity(); };
  EXPECT_EQ(identity(two_fields()), identity(two_fields()));
  const auto one = [](Ints values) { return Samples::in_memory({{"word", {}, std::move(values)}}); };
  EXPECT_NE(identity(one({1, 2})), identity(one({2, 1})));
  SampleSource other = counted(3);
  other.identity = "other numbers";
  EXPECT_NE(identity(Samples::from(counted(3))), identity(Samples::from(other)));
}

TEST(OwnSamples, OfACallbackAreCheckedWhereTheyAreRead) {
  const auto data = SamplesAccess::dataset_of(Samples::from(counted(9)));
  int32_t word = 0, label = 0;
  std::byte* const both[] = {reinterpret_cast<std::byte*>(&word), reinterpret_cast<std::byte*>(&label)};
  data->read(2, both);
  EXPECT_EQ(word, 2);
  EXPECT_EQ(message_of<DataError>([&] { data->read(3, both); }),
            "Samples: label 3 of sample 3 (numbers) is not from -1 to 2");
  std::byte* const words[] = {both[0], nullptr};
  data->read(4, words);
  EXPECT_EQ(message_of<DataError>([&] { data->read(5, words); }),
            "Samples: word 5 of sample 5 (numbers) is not from 0 to 4");
}

TEST(OwnSamples, DocumentsHaveAnyNumbers) {
  SampleSource source = counted(9);
  source.fields = {{"documents", {{}, DType::int32}}};
  source.vocabulary = 0;
  const auto data = SamplesAccess::dataset_of(Samples::from(source));
  int32_t document = 0;
  std::byte* const to[] = {reinterpret_cast<std::byte*>(&document)};
  data->read(8, to);
  EXPECT_EQ(document, 8);
}

// Images of a program's own: the same keys draw the same as for images in files, and mixtures reach its
// labels.
TEST(OwnSamples, AreTransformedByTheirKeys) {
  std::vector<float> pixels;
  for (int i = 0; i < 4 * 12; ++i) pixels.push_back(static_cast<float>(i) / 48);
  data::DataOptions options;
  options.kind = data::DataKind::own;
  options.own_train = SamplesAccess::dataset_of(
      Samples::in_memory({{"image", {3, 4, 1}, pixels}, {"label", {}, Ints{0, 1, 2, 3}}}));
  options.own_eval = options.own_train;
  options.transforms = {data::FlipOptions{.horizontal = 0.5}, data::NormalizeOptions{{0.5}, {0.25}}};
  options.eval_transforms = {data::CenterCropOptions{1, 2}};
  const auto read = [](const data::Dataset& data, const data::SampleKey& key) {
    std::vector<float> image(static_cast<size_t>(data.fields()[0].spec.shape.count()));
    std::vector<std::byte*> to(data.fields().size(), nullptr);
    to[0] = reinterpret_cast<std::byte*>(image.data());
    data.read(key, to);
    return image;
  };
  const auto value = [](int number) { return (static_cast<float>(number) / 48 - 0.5f) / 0.25f; };
  const data::DatasetPair data = data::open_datasets(options);
  int mirrored = 0;
  for (int64_t epoch = 0; epoch < 40; ++epoch) {
    const data::SampleKey key{1, epoch, 7};
    const auto image = read(*data.train, key);
    EXPECT_EQ(read(*data.train, key), image);
    const bool is_mirrored = image[0] != value(12);
    mirrored += is_mirrored;
    for (int y = 0; y < 3; ++y)
      for (int x = 0; x < 4; ++x)
        EXPECT_FLOAT_EQ(image[static_cast<size_t>(4 * y + x)], value(12 + 4 * y + (is_mirrored ? 3 - x : x)));
  }
  EXPECT_GT(mirrored, 5);
  EXPECT_LT(mirrored, 35);
  EXPECT_EQ(data.eval->fields()[0].spec.shape, (Shape{1, 2, 1}));
  EXPECT_THAT(read(*data.eval, {0, 0, 7}), ElementsAre(pixels[5], pixels[6]));
  options.transforms = {data::MixupOptions{.alpha = 1, .probability = 1}};
  const auto mixed = data::open_datasets(options).train;
  EXPECT_EQ(mixed->fields().back().name, data::kLabelMixField);
  EXPECT_NE(read(*mixed, {0, 0, 7}), std::vector<float>(pixels.begin(), pixels.begin() + 12));
}

TEST(OwnSamples, MistakesAreNamed) {
  const auto refused = [](std::vector<FieldValues> fields) {
    return message_of<ConfigError>([&] { Samples::in_memory(std::move(fields)); });
  };
  EXPECT_EQ(refused({}), "Samples: expected at least one field, found none");
  EXPECT_EQ(refused({{"a", {}, Ints{1}}, {"a", {}, Ints{1}}}),
            "Samples: expected fields of different names, found 'a' twice");
  EXPECT_EQ(refused({{"a", {2}, Ints{1}}}),
            "Samples: field 'a' has 1 values; expected a multiple of 2, the size of a sample of shape [2]");
  EXPECT_EQ(refused({{"a", {}, Ints{}}}), "Samples: field 'a' has no samples");
  std::vector<FieldValues> many;
  for (int i = 0; i < 17; ++i) many.push_back({"field" + std::to_string(i), {}, Ints{1}});
  EXPECT_EQ(refused(many), "Samples: expected at most 16 fields, found 17");
  many.pop_back();
  EXPECT_EQ(Samples::in_memory(many).count(), 1);
  EXPECT_EQ(message_of<DataError>([] {
              Samples::in_memory({{"a", {}, Ints{3, -1}}});
            }),
            "Samples: a -1 of sample 1 is negative");
  SampleSource none = counted(3);
  none.vocabulary = 0;
  EXPECT_THAT(message_of<ConfigError>([&] { Samples::from(none); }), HasSubstr("field 'word'"));
}

}  // namespace
}  // namespace lockstep
