#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <tuple>
#include <utility>

#include "data/test_files.h"
#include "mentions.h"
#include "train/thread_ranks.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kResumeConfig = R"(
format_version: 1
model { lenet { image: 16 image: 16 image: 1 classes: 4 dropout: 0.2 batch_norm: true } }
data { synthetic { samples: 40 eval_samples: 8 classes: 4 shape: 16 shape: 16 shape: 1 } }
trainer { steps: 10 global_batch: 12 virtual_replicas: 4 seed: 7 clip_norm: 1 }
optimizer { learning_rate: 0.01 adamw {} weight_decay: 0.1 schedule { warmup_steps: 2 cosine {} } }
parallel { reduction: REPRODUCIBLE bucket_bytes: 8192 }
checkpoint { every_steps: 3 resume_automatic: true }
)";

/// Says how often each of its samples was read.
class CountingDataset : public data::Dataset {
 public:
  explicit CountingDataset(int64_t size) : reads_(static_cast<size_t>(size)) {}

  const std::vector<data::Field>& fields() const override { return fields_; }
  int64_t size() const override { return static_cast<int64_t>(reads_.size()); }
  int64_t classes() const override { return 4; }
  uint64_t identity() const override { return reads_.size(); }
  std::string description() const override { return "counted samples"; }
  void read(const data::SampleKey& key, std::span<std::byte* const> destinations) const override {
    const int64_t sample = key.sample;
    ++reads_[static_cast<size_t>(sample)];
    for (int i = 0; i < 16 * 16; ++i)
      reinterpret_cast<float*>(destinations[0])[i] = 0.01f * static_cast<float>(i);
    *reinterpret_cast<int32_t*>(destinations[1]) = static_cast<int32_t>(sample % 4);
  }

  std::vector<int> reads() const { return {reads_.begin(), reads_.end()}; }

 private:
  std::vector<data::Field> fields_ = {{"image", {Shape{16, 16, 1}, DType::float32}},
                                      {"label", {Shape{}, DType::int32}}};
  mutable std::vector<std::atomic<int>> reads_;
};

class Resume : public testing::Test {
 protected:
  struct Result {
    uint64_t state_hash = 0;
    TrainingOutcome outcome;
    std::string error;
  };

  /// Trains on `ranks` threads, stopping after `stop_after` steps of this run (0: to the end).
  Result train(int ranks, int stop_after = 0, const std::vector<std::string>& overrides = {}) const {
    return train(config::parse_run_config(kResumeConfig, "test", overrides), ranks, stop_after);
  }

  Result train(const config::RunConfig& config, int ranks, int stop_after) const {
    std::vector<Result> results(static_cast<size_t>(ranks));
    const auto mailboxes = control::make_local_mailboxes(ranks);
    run_ranks(ranks, [&](int rank, comm::Communicator& world) {
      auto& result = results[static_cast<size_t>(rank)];
      Worker worker(config, {.rank = rank, .world_size = ranks, .asynchronous = {}});
      worker.connect(world);
      TrainerEvents events;
      int asked = 0;
      TrainerRunOptions options{.output_directory = directory_, .stop_requested = {}};
      options.mailbox = mailboxes[static_cast<size_t>(rank)].get();
      options.stop_requested = [&] { return stop_after > 0 && rank == ranks - 1 && ++asked == stop_after; };
      try {
        Trainer trainer(worker, world, events, options);
        trainer.prepare();
        result.outcome = trainer.run();
      } catch (const comm::CollectiveError& error) {
        result.error = error.what();
      }
      result.state_hash = state_hash_of(worker, world);
    });
    for (const auto& result : results) EXPECT_EQ(result.state_hash, results[0].state_hash);
    return results[0];
  }

  /// Likewise of own samples, which are read when they are asked for.
  Result train_on(const std::shared_ptr<CountingDataset>& samples, int ranks, int stop_after,
                  std::vector<std::string> overrides) const {
    overrides.insert(overrides.end(), {"data.prefetch_threads=0", "checkpoint.allow_config_change=true"});
    config::RunConfig config = config::parse_run_config(kResumeConfig, "test", overrides);
    config.data.kind = data::DataKind::own;
    config.data.own_train = samples;
    return train(config, ranks, stop_after);
  }

  checkpoint::Manifest newest_manifest() const {
    return checkpoint::Checkpoint(checkpoint::find_checkpoints(directory_ + "/checkpoints").at(0).path)
        .manifest();
  }

  void damage(const std::string& file) const {
    std::fstream stream(directory_ + "/checkpoints/" + file, std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(stream) << file;
    stream.seekp(-1, std::ios::end);
    stream.put('~');
  }

  const test::TemporaryDirectory folder_;
  std::string directory_ = folder_ / "run";
};

TEST_F(Resume, WithOtherFrozenLayersAllStateIsCompared) {
  const std::string frozen = "model.frozen=[\"conv1\"]", allowed = "checkpoint.allow_config_change=true";
  for (const bool thaws : {true, false}) {
    SCOPED_TRACE(thaws);
    std::filesystem::remove_all(directory_);
    ASSERT_TRUE(train(1, 4, thaws ? std::vector{frozen} : std::vector<std::string>{}).outcome.stopped);
    const std::vector<std::string> now = thaws ? std::vector{allowed} : std::vector{frozen, allowed};
    const std::string saved = checkpoint::find_checkpoints(directory_ + "/checkpoints").at(0).path;
    const checkpoint::Manifest right = checkpoint::read_manifest(saved);
    checkpoint::Manifest wrong = right;
    ++wrong.state_hash;
    std::ofstream(saved + "/manifest.json") << to_text(wrong);
    EXPECT_THAT(train(2, 0, now).error, HasSubstr("another hash"));
    std::ofstream(saved + "/manifest.json") << to_text(right);
    const Result resumed = train(2, 0, now);
    EXPECT_EQ(resumed.error, "");
    EXPECT_EQ(resumed.outcome.steps, 10);
  }
}

TEST_F(Resume, OnAnotherNumberOfWorkersEndsWithTheSameBits) {
  const Result whole = train(1);
  ASSERT_EQ(whole.outcome.steps, 10);
  for (const int stop : {1, 4, 7}) {
    std::filesystem::remove_all(directory_);
    const Result first = train(2, stop);
    EXPECT_TRUE(first.outcome.stopped);
    EXPECT_EQ(first.outcome.steps, stop);
    const Result second = train(3);
    EXPECT_EQ(second.outcome.first_step, stop);
    EXPECT_EQ(second.outcome.steps, 10);
    EXPECT_EQ(second.state_hash, whole.state_hash) << "stopped after " << stop;
    EXPECT_EQ(second.outcome.train_loss, whole.outcome.train_loss);
  }
}

TEST_F(Resume, OfACompleteRunTrainsNoFurther) {
  const Result whole = train(2);
  const Result again = train(1);
  EXPECT_EQ(again.outcome.first_step, 10);
  EXPECT_EQ(again.state_hash, whole.state_hash);
}

TEST_F(Resume, DamagedCheckpointIsRefusedByNameAndTheOneBeforeUsed) {
  const Result whole = train(1);
  damage("step-00000010/model-00001-of-00001.safetensors");
  testing::internal::CaptureStderr();
  const Result second = train(2);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("warning: refused"), HasSubstr("step-00000010")));
  EXPECT_EQ(second.outcome.first_step, 9);
  EXPECT_EQ(second.state_hash, whole.state_hash);
}

TEST_F(Resume, WithNothingLeftToUseSaysSoAndChangesNothing) {
  train(1);
  for (const char* step : {"06", "09", "10"}) damage(std::string("step-000000") + step + "/manifest.json");
  const Result second = train(2);
  EXPECT_THAT(second.error, Mentions("none ... checkpoints"));
}

TEST_F(Resume, UnderAnotherConfigurationIsRefusedNamingTheField) {
  train(1, 4);
  const Result refused = train(2, 0, {"trainer.seed=8"});
  EXPECT_THAT(refused.error,
              AllOf(HasSubstr("trainer.seed"), HasSubstr("7"), HasSubstr("8"), HasSubstr("allow")));
  const Result allowed = train(2, 0, {"trainer.seed=8", "checkpoint.allow_config_change=true"});
  EXPECT_EQ(allowed.outcome.steps, 10);
  EXPECT_EQ(allowed.error, "");
}

/// LARS's velocity has another sign and unit: SGD would go uphill with it.
TEST_F(Resume, OfTheMomentumOfSgdByLarsIsRefused) {
  const std::string sgd = "optimizer.sgd={momentum: 0.9}", lars = "optimizer.lars={}";
  for (const auto& [saved, wanted] : {std::pair(sgd, lars), std::pair(lars, sgd)}) {
    std::filesystem::remove_all(directory_);
    train(1, 4, {saved});
    const Result refused = train(1, 0, {wanted, "checkpoint.allow_config_change=true"});
    EXPECT_THAT(refused.error, HasSubstr(wanted == lars ? "'conv1.weight.velocity' is missing"
                                                        : "'conv1.weight.momentum' is missing"));
  }
}

TEST_F(Resume, WithAnotherBatchGoesOnAfterTheSamplesThatWereTaken) {
  for (const auto& [first_batch, second_batch, steps] : {std::tuple{12, 24, 7}, {24, 12, 6}}) {
    std::filesystem::remove_all(directory_);
    const auto samples = std::make_shared<CountingDataset>(60);
    const std::string epochs = "trainer.epochs=2";
    train_on(samples, 2, 4, {epochs, fmt::format("trainer.global_batch={}", first_batch)});
    EXPECT_EQ(newest_manifest().data_position, 4 * first_batch);
    const Result second =
        train_on(samples, 1, 0, {epochs, fmt::format("trainer.global_batch={}", second_batch)});
    EXPECT_EQ(second.outcome.first_step, 4);
    EXPECT_EQ(second.outcome.steps, steps) << first_batch;
    EXPECT_DOUBLE_EQ(second.outcome.epochs, 2) << first_batch;
    EXPECT_EQ(newest_manifest().data_position, 120);
    EXPECT_EQ(newest_manifest().total_steps, steps);
    EXPECT_THAT(samples->reads(), testing::Each(2)) << first_batch;
    // What comes later counts all of them, too.
    const Result third = train_on(samples, 1, 0, {"trainer.epochs=2.4", "trainer.global_batch=12"});
    EXPECT_EQ(third.outcome.steps, steps + 2);
    EXPECT_DOUBLE_EQ(third.outcome.epochs, 2.4);
  }
}

TEST_F(Resume, OfWorkersThatDoNotWaitGoesOnAfterTheSamplesThatWereTaken) {
  const std::vector<std::string> async = {
      "parallel.sync=PS", "parallel.mode=ASYNC", "parallel.placement=COLOCATED",
      "parallel.async_statistics=EXPONENTIAL_BY_PUSH", "parallel.reduction=FAST"};
  const auto with = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> overrides = async;
    overrides.insert(overrides.end(), more);
    return overrides;
  };
  const auto samples = std::make_shared<CountingDataset>(60);
  train_on(samples, 2, 0, with({"trainer.global_batch=12", "trainer.epochs=0.8"}));
  EXPECT_EQ(newest_manifest().data_position, 48);
  const Result second =
      train_on(samples, 2, 0, with({"trainer.global_batch=6", "parallel.pushes=3", "trainer.epochs=2"}));
  EXPECT_EQ(second.outcome.first_step, 4);
  EXPECT_EQ(second.outcome.steps, 4 + (120 - 48) / 6);
  EXPECT_DOUBLE_EQ(second.outcome.epochs, 2);
  EXPECT_THAT(samples->reads(), testing::Each(2));
}

TEST_F(Resume, OnDataThatGrewGoesOnAfterTheSamplesThatWereTaken) {
  train_on(std::make_shared<CountingDataset>(48), 1, 4, {"trainer.epochs=2", "data.shuffle=false"});
  const auto grown = std::make_shared<CountingDataset>(72);
  const Result second = train_on(grown, 2, 0, {"trainer.epochs=2", "data.shuffle=false"});
  EXPECT_EQ(second.outcome.steps, 12);
  EXPECT_DOUBLE_EQ(second.outcome.epochs, 2);
  const std::vector<int> reads = grown->reads();
  EXPECT_THAT(std::vector<int>(reads.begin(), reads.begin() + 48), testing::Each(1));
  EXPECT_THAT(std::vector<int>(reads.begin() + 48, reads.end()), testing::Each(2));
}

TEST_F(Resume, OnAnotherPartOfTheDataGoesOnAfterTheSamplesThatWereTaken) {
  train_on(std::make_shared<CountingDataset>(60), 1, 4, {"trainer.epochs=2", "data.shuffle=false"});
  EXPECT_EQ(newest_manifest().data_position, 48);
  const auto smaller = std::make_shared<CountingDataset>(36);  // 48 samples are all of them, and 12
  const Result second = train_on(smaller, 1, 0, {"trainer.epochs=2", "data.shuffle=false"});
  EXPECT_EQ(second.outcome.steps, 6);
  EXPECT_DOUBLE_EQ(second.outcome.epochs, 2);
  const std::vector<int> reads = smaller->reads();
  EXPECT_THAT(std::vector<int>(reads.begin(), reads.begin() + 12), testing::Each(0));
  EXPECT_THAT(std::vector<int>(reads.begin() + 12, reads.end()), testing::Each(1));
}

TEST_F(Resume, FromAnotherRunsFolderSavesItsEndInItsOwn) {
  train(1);
  const std::string before = std::exchange(directory_, folder_ / "other");
  const Result again = train(2, 0, {"checkpoint.resume_path='" + before + "'"});
  EXPECT_EQ(again.outcome.first_step, 10);
  EXPECT_EQ(checkpoint::find_checkpoints(directory_ + "/checkpoints").at(0).step, 10);
}

TEST_F(Resume, KeepsAsManyCheckpointsAsAsked) {
  train(1, 0, {"checkpoint.keep=2", "checkpoint.every_steps=2"});
  const auto found = checkpoint::find_checkpoints(directory_ + "/checkpoints");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].step, 10);
  EXPECT_EQ(found[1].step, 8);
}

TEST_F(Resume, TakesACheckpointUnderAnyName) {
  train(1, 4);
  namespace fs = std::filesystem;
  const auto found = checkpoint::find_checkpoints(directory_ + "/checkpoints");
  ASSERT_FALSE(found.empty());
  fs::copy(found[0].path, folder_ / "copied", fs::copy_options::recursive);
  fs::create_directory_symlink(found[0].path, folder_ / "link");
  for (const std::string& path :
       {found[0].path + "/", folder_ / "copied", folder_ / "link", folder_ / "link/"}) {
    fs::remove_all(folder_ / "other");
    const std::string before = std::exchange(directory_, folder_ / "other");
    const Result result = train(1, 0, {fmt::format("checkpoint.resume_path='{}'", path)});
    EXPECT_EQ(result.error, "") << path;
    EXPECT_EQ(result.outcome.steps, 10) << path;
    directory_ = before;
  }
}

TEST_F(Resume, FromALinkThatLeadsToItselfSaysSo) {
  std::filesystem::create_symlink("loop", folder_ / "loop");
  EXPECT_THAT(train(1, 0, {fmt::format("checkpoint.resume_path='{}'", folder_ / "loop")}).error,
              Mentions("checkpoint ... " + (folder_ / "loop")));
}

TEST_F(Resume, FromAPathThatHoldsNothingNamesIt) {
  const Result result = train(2, 0, {"checkpoint.resume_path='/nonexistent/run'"});
  EXPECT_THAT(result.error, HasSubstr("/nonexistent/run"));
}

}  // namespace
}  // namespace lockstep::train
