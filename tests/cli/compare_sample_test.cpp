#include "cli/compare_sample.h"

#include <gtest/gtest.h>

#include "data/test_files.h"
#include "lockstep/error.h"

namespace lockstep::cli {
namespace {

std::string metrics(int steps) {
  std::string text;
  for (int i = 1; i <= steps; ++i)
    text += "{\"step\": " + std::to_string(i) + ", \"loss\": " + std::to_string(i) + "}\n";
  return text;
}

TEST(LossesOf, AreMeansOfEqualNumbersOfSteps) {
  const test::TemporaryDirectory folder;
  const std::string path = folder / "metrics.jsonl";
  test::write_file(path, metrics(3) + "{\"step\": 3, \"eval_loss\": 9}\n");
  EXPECT_EQ(losses_of(path, 10), (std::vector<CompareLoss>{{10, 1}, {20, 2}, {30, 3}}));
  test::write_file(path, metrics(101));
  const std::vector<CompareLoss> losses = losses_of(path, 10);
  ASSERT_EQ(losses.size(), 34u) << "three steps each, and two";
  EXPECT_EQ(losses[0], (CompareLoss{30, 2}));
  EXPECT_EQ(losses[33], (CompareLoss{1010, 100.5}));
  EXPECT_THROW(losses_of(folder / "none", 10), IoError);
}

}  // namespace
}  // namespace lockstep::cli
