#include "data/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <thread>

#include "base/hash.h"
#include "data/test_files.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

using test::message_of;
using ::testing::HasSubstr;

DataOptions images() {
  DataOptions options;
  options.samples = 400;
  options.eval_samples = 100;
  options.classes = 4;
  options.shape = "5,5,3";
  return options;
}

struct SyntheticSample {
  std::vector<float> image = std::vector<float>(75);
  int32_t label = -7;
  bool operator==(const SyntheticSample&) const = default;
};
SyntheticSample read_sample(const Dataset& data, int64_t index) {
  SyntheticSample sample;
  std::byte* const destinations[] = {reinterpret_cast<std::byte*>(sample.image.data()),
                                     reinterpret_cast<std::byte*>(&sample.label)};
  data.read(index, destinations);
  return sample;
}

double squared_distance(const std::vector<float>& a, const std::vector<float>& b) {
  return std::transform_reduce(a.begin(), a.end(), b.begin(), 0.0, std::plus<>(),
                               [](float x, float y) { return (x - y) * (x - y); });
}

TEST(SyntheticImages, AreAFunctionOfTheSeed) {
  const auto first = open_datasets(images()), again = open_datasets(images());
  auto other_options = images();
  other_options.seed = 2;
  const auto other = open_datasets(other_options);
  EXPECT_EQ(read_sample(*first.train, 17), read_sample(*again.train, 17));
  EXPECT_NE(read_sample(*first.train, 17), read_sample(*other.train, 17));
  EXPECT_EQ(first.train->identity(), again.train->identity());
  EXPECT_NE(first.train->identity(), other.train->identity());
  EXPECT_NE(first.train->identity(), first.eval->identity());
}

TEST(SyntheticImages, HaveBalancedLabels) {
  const auto data = open_datasets(images());
  EXPECT_EQ(data.train->fields(), (std::vector<Field>{{"image", {Shape{5, 5, 3}, DType::float32}},
                                                      {"label", {Shape{}, DType::int32}}}));
  std::map<int32_t, int> counts;
  for (int64_t i = 0; i < data.train->size(); ++i) ++counts[read_sample(*data.train, i).label];
  EXPECT_EQ(counts, (std::map<int32_t, int>{{0, 100}, {1, 100}, {2, 100}, {3, 100}}));
}

// The nearest class mean of the training samples is the simplest learner there is.
TEST(SyntheticImages, CanBeLearnedAndGeneralise) {
  const auto data = open_datasets(images());
  std::vector<std::vector<float>> means(4, std::vector<float>(75));
  for (int64_t i = 0; i < data.train->size(); ++i) {
    const auto sample = read_sample(*data.train, i);
    for (size_t j = 0; j < 75; ++j) means[static_cast<size_t>(sample.label)][j] += sample.image[j] / 100;
  }
  int right = 0;
  for (int64_t i = 0; i < data.eval->size(); ++i) {
    const auto sample = read_sample(*data.eval, i);
    const auto nearest = std::min_element(means.begin(), means.end(), [&](const auto& a, const auto& b) {
      return squared_distance(a, sample.image) < squared_distance(b, sample.image);
    });
    right += nearest - means.begin() == sample.label;
  }
  EXPECT_GE(right, 99);
}

TEST(SyntheticImages, NoiseIsCentredWithDeviationOne) {
  auto options = images();
  options.shape = "64";  // prototypes of deviation 1 too
  options.samples = 2000;
  const auto data = open_datasets(options);
  double sum = 0, squares = 0;
  std::vector<float> first(64), image(64);
  for (int64_t i = 0; i < 2000; i += 8) {  // pairs of one class differ by noise alone
    std::byte* const a[] = {reinterpret_cast<std::byte*>(first.data()), nullptr};
    std::byte* const b[] = {reinterpret_cast<std::byte*>(image.data()), nullptr};
    data.train->read(i, a);
    data.train->read(i + 4, b);
    for (size_t j = 0; j < 64; ++j) {
      sum += first[j] - image[j];
      squares += (first[j] - image[j]) * (first[j] - image[j]);
    }
  }
  EXPECT_NEAR(sum / 16000, 0, 0.06);
  EXPECT_NEAR(squares / 16000, 2, 0.12);  // the variance of a difference
}

TEST(SyntheticTokens, MostlyFollowOneSuccessorPerToken) {
  DataOptions options;
  options.samples = 50;
  options.eval_samples = 1;
  options.classes = 11;
  options.context = 64;
  const auto data = open_datasets(options);
  EXPECT_EQ(data.train->fields(), (std::vector<Field>{{"tokens", {Shape{64}, DType::int32}},
                                                      {"label", {Shape{64}, DType::int32}}}));
  std::map<int32_t, std::map<int32_t, int>> followers;
  for (int64_t i = 0; i < 50; ++i) {
    std::vector<int32_t> tokens(64), labels(64);
    std::byte* const destinations[] = {reinterpret_cast<std::byte*>(tokens.data()),
                                       reinterpret_cast<std::byte*>(labels.data())};
    data.train->read(i, destinations);
    for (size_t j = 0; j < 64; ++j) {
      ASSERT_TRUE(tokens[j] >= 0 && tokens[j] < 11);
      if (j > 0) {
        ASSERT_EQ(tokens[j], labels[j - 1]);
      }
      ++followers[tokens[j]][labels[j]];
    }
  }
  ASSERT_EQ(followers.size(), 11u);
  int most_frequent = 0;
  for (const auto& [token, counts] : followers)
    most_frequent += std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
                       return a.second < b.second;
                     })->second;
  // 7/8 plus a random hit of 1/88: 0.886 of 3200 transitions; four deviations are 0.023.
  EXPECT_NEAR(most_frequent / 3200.0, 0.886, 0.025);
}

/// Of every sample, train's then eval's, in every field.
std::string hash_of_samples(const DataOptions& options) {
  const auto data = open_datasets(options);
  uint64_t hash = 0;
  for (const Dataset* half : {data.train.get(), data.eval.get()}) {
    const auto& fields = half->fields();
    std::vector<std::vector<std::byte>> values;
    std::vector<std::byte*> destinations;
    for (const auto& field : fields) {
      values.emplace_back(static_cast<size_t>(field.spec.shape.count()) * 4);
      destinations.push_back(values.back().data());
    }
    for (int64_t i = 0; i < half->size(); ++i) {
      half->read(i, destinations);
      for (const auto& bytes : values) hash = hash_combine(hash, hash64(bytes.data(), bytes.size()));
    }
  }
  return to_hex(hash);
}

// Written down when every block of random numbers was drawn by itself. Runs that were made with these samples
// can be repeated only as long as they stay.
TEST(Synthetic, TheBitsOfSamplesAreWhatTheyWereFromTheStart) {
  const auto hash = [](int64_t samples, int64_t classes, std::string shape, int64_t context, uint64_t seed) {
    DataOptions options;
    options.samples = samples;
    options.eval_samples = 5;
    options.classes = classes;
    options.shape = std::move(shape);
    options.context = context;
    options.seed = seed;
    return hash_of_samples(options);
  };
  EXPECT_EQ(hash(300, 10, "28,28,1", 0, 1), "a66173d192ae8e72");
  EXPECT_EQ(hash(40, 10, "32,32,3", 0, 0xFFFFFFFFFFFFFFFF), "268e243c2b3236af");
  EXPECT_EQ(hash(40, 7, "5,5,3", 0, 2), "5f5a2267f851aaa0");
  EXPECT_EQ(hash(40, 7, "1", 0, 2), "1f63fd4e46449f22");
  EXPECT_EQ(hash(5, 100000, "515", 0, 2), "993a399489b9bf5c");
  EXPECT_EQ(hash(300, 65, "", 64, 1), "16b6b0e209705da3");
  EXPECT_EQ(hash(30, 50257, "", 1023, 2), "ddf1c1ca663347b0");
  EXPECT_EQ(hash(30, 2, "", 1, 3), "b56bbb98150bd54b");
  EXPECT_EQ(hash(2, 2147483647, "", 300, 3), "280aebe3d2fd022a");
}

// Readers share what was found about the tokens before.
TEST(SyntheticTokens, AreTheSameReadByManyThreadsAtOnce) {
  DataOptions options;
  options.samples = 20;
  options.eval_samples = 1;
  options.classes = 5000;
  options.context = 300;
  const auto read_all = [](const Dataset& data) {
    std::vector<int32_t> all;
    for (int64_t i = 0; i < data.size(); ++i) {
      std::vector<int32_t> tokens(300);
      std::byte* const destinations[] = {reinterpret_cast<std::byte*>(tokens.data()), nullptr};
      data.read(i, destinations);
      all.insert(all.end(), tokens.begin(), tokens.end());
    }
    return all;
  };
  const auto expected = read_all(*open_datasets(options).train);
  const auto shared = open_datasets(options);
  std::vector<std::vector<int32_t>> found(4);
  std::vector<std::thread> threads;
  for (auto& own : found) threads.emplace_back([&] { own = read_all(*shared.train); });
  for (auto& thread : threads) thread.join();
  for (const auto& own : found) EXPECT_EQ(own, expected);
}

TEST(Synthetic, MayHaveNothingToEvaluateOn) {
  auto options = images();
  options.eval_samples = 0;
  EXPECT_EQ(open_datasets(options).eval, nullptr);
  EXPECT_EQ(open_datasets(options).train->identity(), open_datasets(images()).train->identity());
}

TEST(Synthetic, RefusesOptionsThatMakeNoSense) {
  const auto refusal = [](auto&& change) {
    auto options = images();
    change(options);
    return message_of<ConfigError>([&] { open_datasets(options); });
  };
  EXPECT_THAT(refusal([](auto& o) { o.samples = 0; }), HasSubstr("samples"));
  EXPECT_THAT(refusal([](auto& o) { o.classes = 1; }), HasSubstr("data.classes"));
  EXPECT_THAT(refusal([](auto& o) { o.shape = "5,x"; }), HasSubstr("\"5,x\""));
  EXPECT_THAT(refusal([](auto& o) { o.shape = "5,-1"; }), HasSubstr("\"5,-1\""));
  EXPECT_THAT(refusal([](auto& o) { o.shape = "100000,100000"; }), HasSubstr("2^32"));
  EXPECT_THAT(refusal([](auto& o) { o.shape = "9999999999,9999999999"; }), HasSubstr("63 bits"));
  EXPECT_THAT(refusal([](auto& o) { o.context = 4; }), HasSubstr("not both"));
  EXPECT_THAT(refusal([](auto& o) { o.shape = ""; }), HasSubstr("not both"));
}

}  // namespace
}  // namespace lockstep::data
