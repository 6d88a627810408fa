// Layers that were frozen at first: what they learn with, and from when on their updates count.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>

#include "checkpoint/checkpoint.h"
#include "data/test_files.h"
#include "train/loop/divided_models.h"
#include "train/loop/resumed_layouts.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

using Since = std::map<std::string, int64_t>;

constexpr const char* kFrozen = "model.frozen=[\"fc1\"]";
const Since kSinceTheFourth = {{"fc1.weight", 4}, {"fc1.bias", 4}};

config::RunConfig config_with(std::vector<std::string> assignments) {
  assignments.insert(assignments.end(),
                     {"trainer.steps=8", "trainer.eval_every_steps=0", "checkpoint.resume_automatic=true",
                      "checkpoint.allow_config_change=true"});
  return config_of(kMlp, assignments);
}

class ThawedLayers : public testing::Test {
 protected:
  /// Four steps without what is learned later, in a folder of its own.
  std::string begun(const std::string& name, std::vector<std::string> assignments) {
    assignments.emplace_back(kFrozen);
    const std::string folder = folder_ / name;
    train_until(config_with(std::move(assignments)), "dp=1", 4, folder);
    return folder;
  }
  std::string copy_of(const std::string& folder, const std::string& name) {
    fs::copy(folder, folder_ / name, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    return folder_ / name;
  }
  static Since since(const std::string& folder, int64_t step) {
    for (const auto& found : checkpoint::find_checkpoints(folder + "/checkpoints"))
      if (found.step == step) return checkpoint::read_manifest(found.path).learning_since;
    ADD_FAILURE() << "no checkpoint of step " << step;
    return {};
  }

  const test::TemporaryDirectory folder_;
};

TEST_F(ThawedLayers, LearnToTheSameBitsInEveryLayoutAndAfterAnotherResume) {
  for (const std::string optimizer : {"adamw", "lamb", "muon"}) {
    // Beside muon it is AdamW that counts.
    const std::string fields = optimizer == "muon" ? "adamw: {learning_rate: 0.002}" : "";
    const std::vector<std::string> chosen = {"optimizer." + optimizer + "={" + fields + "}"};
    const config::RunConfig config = config_with(chosen);
    const std::string first = begun(optimizer, chosen), one = copy_of(first, optimizer + "-one");
    EXPECT_EQ(since(first, 4), Since());
    const auto expected = train_until(config, "dp=1", 0, one);
    EXPECT_EQ(since(one, 8), kSinceTheFourth);
    for (const auto& [before, after] : std::vector<std::pair<std::string, std::string>>{
             {"dp=2", "dp=3,shard=optimizer"},
             {"dp=2,shard=optimizer", "dp=2,sync=ps,servers=2,assign=whole"},
             {"dp=2,sync=ps,mode=stale,bound=0", "dp=1,pp=2"},
             {"dp=2,pp=2", "dp=1"}}) {
      const std::string folder = copy_of(first, optimizer + "-" + before);
      train_until(config, before, 6, folder);
      EXPECT_EQ(since(folder, 6), kSinceTheFourth);
      EXPECT_EQ(train_until(config, after, 0, folder).second, expected.second)
          << before << ", then " << after;
    }
  }
}

TEST_F(ThawedLayers, FrozenAgainBeginAnewAgain) {
  const std::string folder = begun("run", {});
  train_until(config_with({}), "dp=1", 5, folder);
  EXPECT_EQ(since(folder, 5), kSinceTheFourth);
  train_until(config_with({kFrozen}), "dp=1", 6, folder);
  EXPECT_EQ(since(folder, 6), Since());
  train_until(config_with({}), "dp=1", 8, folder);
  EXPECT_EQ(since(folder, 8), (Since{{"fc1.weight", 6}, {"fc1.bias", 6}}));
}

class ThawedLayersWithAdamW : public ThawedLayers, public testing::WithParamInterface<const char*> {};

/// Adam's first update of a parameter moves each element by the rate, whatever its gradient.
TEST_P(ThawedLayersWithAdamW, BeginAsIfTheTrainingBegan) {
  const std::vector<std::string> chosen = {GetParam(), "optimizer.weight_decay=0", "parallel.reduction=FAST"};
  const config::RunConfig config = config_with(chosen);
  const std::string first = begun("begun", chosen);
  for (const char* layout : {"dp=1", "dp=1,sync=ps,mode=async", "dp=1,sync=ps,mode=stale"}) {
    config::RunConfig its = with(config, layout);
    its.checkpoint.resume = checkpoint::ResumePolicy::automatic;
    const int ranks = processes_of(layout);
    std::vector<float> before, after;
    const std::string folder = copy_of(first, std::string("then ") + layout);
    run_ranks(ranks, [&](int rank, comm::Communicator& world) {
      Worker worker(its, {.rank = rank, .world_size = ranks, .asynchronous = {}});
      worker.connect(world);
      Trainer trainer(worker, world, {}, {.output_directory = folder, .stop_requested = {}, .stop_after = 5});
      const auto values = [&] {
        const int64_t count = worker.compiled().graph().parameter(0).spec.shape.count();
        const auto* data =
            static_cast<const float*>(worker.window().read(worker.parameter_data(0), 4 * count));
        return std::vector<float>(data, data + count);
      };
      trainer.prepare();
      if (rank == 0) before = values();
      trainer.run();
      if (rank == 0) after = values();
    });
    ASSERT_EQ(before.size(), after.size());
    size_t moved = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      const double by = std::fabs(after[i] - before[i]) / config.optimizer.learning_rate;
      EXPECT_LT(by, 1.001) << layout << ", element " << i;
      moved += by > 0.9 ? 1 : 0;
    }
    EXPECT_GT(moved, before.size() / 2) << layout;
  }
}

// Beside muon AdamW updates fc1, at the rate of all.
INSTANTIATE_TEST_SUITE_P(All, ThawedLayersWithAdamW,
                         testing::Values("optimizer.adamw={}",
                                         "optimizer.muon={adamw: {learning_rate: 0.01}}"));

}  // namespace
}  // namespace lockstep::train
