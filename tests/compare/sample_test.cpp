#include "compare/sample.h"

#include <gtest/gtest.h>

#include "data/test_files.h"
#include "lockstep/error.h"

namespace lockstep::compare {
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

/// Of two workers, one waits longest for others, the other for data.
TEST(SampleOf, TakesAllWaitsFromOneWorker) {
  const auto report =
      nlohmann::ordered_json::parse(R"({"step_ms": {"mean": 10}, "samples_per_second": 1, "train_loss": 1,
    "ranks": [{"role": "worker", "host": "a", "exposed_comm_ms": 6, "data_wait_ms": 1, "compute_share": 0.3, "wire_bytes": {"sent": 5}},
              {"role": "worker", "host": "b", "exposed_comm_ms": 2, "data_wait_ms": 7, "compute_share": 0.1, "wire_bytes": {"sent": 5}},
              {"role": "server", "host": "b", "server_wait_ms": 9, "server_busy": 0.5, "wire_bytes": {"sent": 5}}]})");
  const CompareSample sample = sample_of(report, 1);
  EXPECT_EQ(sample.exposed_comm_ms, 6);
  EXPECT_EQ(sample.data_wait_ms, 1);
  EXPECT_EQ(sample.compute_ms, 3);
  EXPECT_EQ(sample.server_busy, 0.5);
  EXPECT_EQ(sample.hosts, 2);
}

}  // namespace
}  // namespace lockstep::compare
