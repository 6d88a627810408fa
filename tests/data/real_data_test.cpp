#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "data/batch_reader.h"
#include "data/dataset.h"
#include "data/test_files.h"
#include "data/text.h"

namespace lockstep::data {
namespace {

using test::real_data;

/// Why a test is skipped. CTest reports the whole program as skipped where the marker appears.
std::string missing(const std::string& name) {
  const bool nothing = real_data("mnist").empty() && real_data("tinyshakespeare.txt").empty();
  return name + " is not in LOCKSTEP_TEST_DATA" + (nothing ? ": ONLY_SKIPPED_TESTS" : "");
}

TEST(RealData, MnistTestImagesSplitIntoNineThousandAndOneThousand) {
  const std::string folder = real_data("mnist");
  if (folder.empty()) GTEST_SKIP() << missing("mnist");
  DataOptions options;
  options.kind = DataKind::idx;
  options.directory = folder;
  options.train_images = options.eval_images = "t10k-images-idx3-ubyte.gz";
  options.train_labels = options.eval_labels = "t10k-labels-idx1-ubyte.gz";
  options.train_range = {0, 9000};
  options.eval_range = {9000, -1};
  const auto data = open_datasets(options);
  ASSERT_EQ(data.train->size(), 9000);
  ASSERT_EQ(data.eval->size(), 1000);
  EXPECT_EQ(data.train->classes(), 10);
  EXPECT_NE(data.train->identity(), data.eval->identity());

  std::map<int32_t, int> counts;
  std::vector<float> image(784);
  int32_t label = 0;
  double sum = 0;
  std::byte* const destinations[] = {reinterpret_cast<std::byte*>(image.data()),
                                     reinterpret_cast<std::byte*>(&label)};
  for (const auto* part : {data.train.get(), data.eval.get()})
    for (int64_t i = 0; i < part->size(); ++i) {
      part->read(i, destinations);
      ++counts[label];
      for (const float pixel : image) sum += pixel;
    }
  // The published frequencies of the ten thousand test digits, and their mean grey value.
  EXPECT_EQ(counts, (std::map<int32_t, int>{{0, 980},
                                            {1, 1135},
                                            {2, 1032},
                                            {3, 1010},
                                            {4, 982},
                                            {5, 892},
                                            {6, 958},
                                            {7, 1028},
                                            {8, 974},
                                            {9, 1009}}));
  EXPECT_NEAR(sum / 7'840'000, 0.1325, 0.0001);
  data.train->read(0, destinations);
  EXPECT_EQ(label, 7) << "the first test digit";
}

TEST(RealData, TinyShakespeareHasSixtyFiveCharactersAndScoresEachOnce) {
  const std::string path = real_data("tinyshakespeare.txt");
  if (path.empty()) GTEST_SKIP() << missing("tinyshakespeare.txt");
  const auto text = read_text(path, 0.9);
  ASSERT_EQ(text->count(), 1'115'394);
  EXPECT_EQ(text->tokenizer->size(), 65);
  EXPECT_EQ(text->train_count, 1'003'854);
  EXPECT_EQ(text->tokenizer->decode(text->tokenizer->encode("First Citizen:")), "First Citizen:");

  DataOptions options;
  options.kind = DataKind::text;
  options.text_file = path;
  options.context = 64;
  const auto data = open_datasets(options);
  EXPECT_EQ(data.train->size(), 1'003'790);  // 1,003,854 - 64
  EXPECT_EQ(data.eval->size(), 1743);        // 111,539 predictions in windows of 64
  int64_t scored = 0;
  std::array<int32_t, 64> tokens{}, labels{};
  std::byte* const destinations[] = {reinterpret_cast<std::byte*>(tokens.data()),
                                     reinterpret_cast<std::byte*>(labels.data())};
  for (int64_t i = 0; i < data.eval->size(); ++i) {
    data.eval->read(i, destinations);
    for (const int32_t label : labels) {
      if (label < 0) continue;
      ASSERT_EQ(label, std::get<0>(text->tokens)[static_cast<size_t>(1'003'854 + 1 + scored)]);
      ++scored;
    }
  }
  EXPECT_EQ(scored, 111'539);  // 111,540 validation characters, all but the first
}

}  // namespace
}  // namespace lockstep::data
