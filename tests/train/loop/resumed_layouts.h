#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "train/loop/divided_models.h"
#include "train/thread_ranks.h"
#include "train/worker/model_state.h"

namespace lockstep::train {

/// Trains until `steps` in a folder that may hold checkpoints; losses of what was trained here, and the hash
/// of its end.
inline std::pair<std::vector<double>, uint64_t> train_until(config::RunConfig config,
                                                            const std::string& layout, int64_t steps,
                                                            const std::string& folder) {
  config = with(std::move(config), layout);
  config.checkpoint.every_steps = 2;
  config.checkpoint.background = false;
  config.checkpoint.resume = checkpoint::ResumePolicy::automatic;
  const int ranks = processes_of(layout);
  std::vector<std::pair<std::vector<double>, uint64_t>> results(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int rank, comm::Communicator& world) {
    auto& [losses, hash] = results[static_cast<size_t>(rank)];
    Worker worker(config, {.rank = rank, .world_size = ranks, .asynchronous = {}});
    worker.connect(world);
    TrainerEvents events;
    events.on_step = [&, &seen = losses](const StepRecord& record) { seen.push_back(record.loss); };
    Trainer trainer(worker, world, events,
                    {.output_directory = folder, .stop_requested = {}, .stop_after = steps});
    trainer.prepare();
    trainer.run();
    hash = state_hash_of(worker, world);
  });
  for (const auto& result : results) EXPECT_EQ(result, results[0]) << layout;
  return results[0];
}

/// Of each pair of layouts: stopped after two steps in the first, a training goes on in the second to the
/// bits of one process that was never stopped. `name`: of folders.
inline void expect_same_bits_across(const config::RunConfig& config, const std::string& name,
                                    const std::vector<std::pair<std::string, std::string>>& layouts) {
  const auto folder_of = [&](const std::string& number) {
    const auto folder = std::filesystem::path(testing::TempDir()) / (name + "-" + number);
    std::filesystem::remove_all(folder);
    return folder.string();
  };
  const auto one = train_until(config, "dp=1", 0, folder_of("one"));
  int number = 0;
  for (const auto& [first, second] : layouts) {
    const std::string folder = folder_of(std::to_string(number++));
    train_until(config, first, 2, folder);
    const auto rest = train_until(config, second, 0, folder);
    ASSERT_EQ(rest.first.size(), one.first.size() - 2) << first;
    EXPECT_TRUE(std::equal(rest.first.begin(), rest.first.end(), one.first.begin() + 2)) << first;
    EXPECT_EQ(rest.second, one.second) << first << ", then " << second;
  }
}

}  // namespace lockstep::train
