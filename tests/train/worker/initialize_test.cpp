#include "train/worker/initialize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/hash.h"

namespace lockstep::train {
namespace {

using InitializerKind = ops::Initializer::Kind;

model::Parameter parameter(const std::string& name, Shape shape, InitializerKind kind, float scale) {
  model::Parameter result;
  result.name = name;
  result.spec.shape = std::move(shape);
  result.spec.init = {kind, scale};
  return result;
}

std::vector<float> drawn(const model::Parameter& parameter, uint64_t seed, int threads = 1) {
  std::vector<float> values(static_cast<size_t>(parameter.spec.shape.count()), -7);
  initialize_parameter(parameter, seed, tensor::Part::whole(parameter.spec.shape), values, threads);
  return values;
}

std::string hash_of_drawn(const model::Parameter& parameter, uint64_t seed) {
  const auto values = drawn(parameter, seed);
  return to_hex(hash64(values.data(), values.size() * sizeof(float)));
}

// Written down when every number was drawn by itself, with the C library's logarithm and cosine.
TEST(Initialize, TheBitsOfEveryKindAreWhatTheyWereFromTheStart) {
  EXPECT_EQ(hash_of_drawn(parameter("wte.weight", {5027, 64}, InitializerKind::normal, 0.02f), 1),
            "a82845e888657ffb");
  EXPECT_EQ(hash_of_drawn(parameter("wte.weight", {5027, 64}, InitializerKind::normal, 0.02f), 2),
            "214a046ee4cd8ca0");
  EXPECT_EQ(
      hash_of_drawn(parameter("h0.attention.weight", {768, 2304}, InitializerKind::normal, 0.0051f), 1337),
      "9c85525410209ccb");
  EXPECT_EQ(hash_of_drawn(parameter("conv1.weight", {6, 5, 5, 1}, InitializerKind::normal, 0.28284273f), 1),
            "5d4512016b2bebbb");
  EXPECT_EQ(hash_of_drawn(parameter("a", {1}, InitializerKind::normal, 1.0f), uint64_t{1} << 63),
            "aeb8d1d4129eaa38");
  EXPECT_EQ(hash_of_drawn(parameter("wide", {100003}, InitializerKind::normal, 3e38f), 5),
            "54ebf5f6119fb5fc");
  EXPECT_EQ(hash_of_drawn(parameter("narrow", {100003}, InitializerKind::normal, 1e-41f), 5),
            "b5e7d4791523e797");
  EXPECT_EQ(hash_of_drawn(parameter("fc1.weight", {784, 1024}, InitializerKind::uniform, 0.035714287f), 1),
            "310839e40938ec3a");
  EXPECT_EQ(hash_of_drawn(parameter("fc1.bias", {1021}, InitializerKind::uniform, 0.035714287f), 1),
            "0c749ac08862e127");
  EXPECT_EQ(hash_of_drawn(parameter("fc1.bias", {1021}, InitializerKind::uniform, 0.035714287f), 0),
            "e5a5d294eeb21f6a");
}

TEST(Initialize, TheBitsDoNotDependOnTheNumberOfThreads) {
  for (const InitializerKind kind :
       {InitializerKind::normal, InitializerKind::uniform, InitializerKind::one}) {
    const model::Parameter large = parameter("wte.weight", {1000003}, kind, 0.02f);
    const auto values = drawn(large, 1);
    EXPECT_EQ(std::count(values.begin(), values.end(), -7), 0) << "not all were written";
    for (const int threads : {2, 3, 7, 64}) EXPECT_EQ(drawn(large, 1, threads), values) << threads;
  }
}

TEST(Initialize, PartsHaveTheValuesOfTheWhole) {
  const Shape shape{700, 311};
  const auto whole = tensor::Part::whole(shape);
  for (const InitializerKind kind : {InitializerKind::normal, InitializerKind::uniform}) {
    const model::Parameter of = parameter("wte.weight", shape, kind, 0.02f);
    const auto values = drawn(of, 1);
    for (const tensor::Part& part : {tensor::Part::range(65'536, 65'536), tensor::Part::range(1, 9),
                                     tensor::Part::rectangle(shape, {0, 700}, {150, 161}),
                                     tensor::Part::rectangle(shape, {3, 500}, {310, 1}), tensor::Part()})
      for (const int threads : {1, 3}) {
        std::vector<float> expected(static_cast<size_t>(part.count())), found(expected.size(), -7);
        tensor::copy_common(expected.data(), part, values.data(), whole, sizeof(float));
        initialize_parameter(of, 1, part, found, threads);
        EXPECT_EQ(found, expected) << describe(part) << " on " << threads;
      }
  }
}

TEST(Initialize, ConstantsFillTheWholeTensor) {
  EXPECT_EQ(drawn(parameter("a", {3, 7}, InitializerKind::zero, 1), 1), std::vector<float>(21, 0.0f));
  EXPECT_EQ(drawn(parameter("a", {3, 7}, InitializerKind::one, 1), 1), std::vector<float>(21, 1.0f));
}

TEST(Initialize, NamesAndSeedsDrawDifferentNumbers) {
  const auto values = drawn(parameter("a", {64}, InitializerKind::normal, 1), 1);
  EXPECT_EQ(values, drawn(parameter("a", {64}, InitializerKind::normal, 1), 1));
  EXPECT_NE(values, drawn(parameter("b", {64}, InitializerKind::normal, 1), 1));
  EXPECT_NE(values, drawn(parameter("a", {64}, InitializerKind::normal, 1), 2));
}

}  // namespace
}  // namespace lockstep::train
