#include "train/checkpoints/checkpoint_saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <thread>

#include "checkpoint/faulty_file_system.h"
#include "data/test_files.h"
#include "mentions.h"
#include "train/checkpoints/gated_file_system.h"
#include "train/checkpoints/saving_ranks.h"

namespace lockstep::train {
namespace {

using test::FaultyFileSystem;
using test::GatedFileSystem;
using test::latest_of_all_complete;
using test::loaded;
using test::SavingRanks;
using test::SmallState;
using test::TemporaryDirectory;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Fault = FaultyFileSystem::Fault;

FileSystem* const kPosix = &posix_file_system();
const std::vector<FileSystem*> kHealthy{kPosix, kPosix, kPosix};

TEST(CheckpointSaver, WritesTheSharesOfAllRanks) {
  const TemporaryDirectory folder;
  const SmallState state(5);
  SavingRanks ranks(folder.path(), kHealthy, 0);
  for (const auto& outcome : ranks.save(4, state))
    EXPECT_EQ(outcome,
              (checkpoint::SaveOutcome{
                  .step = 4, .path = folder / "step-00000004", .error = "", .code = ExitCode::done}));
  EXPECT_THAT(
      list_directory(folder / "step-00000004"),
      ElementsAre("manifest.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                  "model.safetensors.index.json", "optimizer-00001-of-00001.safetensors"));
  const checkpoint::Checkpoint checkpoint(folder / "step-00000004");
  EXPECT_EQ(loaded(checkpoint), state);
  EXPECT_EQ(checkpoint.manifest().params_hash, checkpoint::parameters_hash(state.parameters()));
  auto all = state.parameters();
  all.push_back(state.state()[0]);
  EXPECT_EQ(checkpoint.manifest().state_hash, checkpoint::parameters_hash(all));
  EXPECT_EQ(checkpoint.manifest().run_id, "r1") << "what rank 0 put into the manifest is there";
}

TEST(CheckpointSaver, KeepsTheNewest) {
  const TemporaryDirectory folder;
  const SmallState state(1);
  SavingRanks ranks(folder.path(), kHealthy, 2);
  for (const int64_t step : {1, 2, 3}) ranks.save(step, state);
  EXPECT_THAT(list_directory(folder.path()), ElementsAre("step-00000002", "step-00000003"));
}

TEST(CheckpointSaver, IsBusyUntilTheSlowestRankHasWritten) {
  const TemporaryDirectory folder;
  const SmallState state(1);
  GatedFileSystem slow("model-00002");
  SavingRanks ranks(folder.path(), {kPosix, &slow, kPosix}, 0);
  ranks.start(1, state);
  slow.await_visitor();
  EXPECT_EQ(ranks.saver(0).poll(), std::nullopt);
  EXPECT_FALSE(ranks.saver(0).settled());
  EXPECT_TRUE(checkpoint::find_checkpoints(folder.path()).empty());
  // The watchdog sees who is at the disk, and who waits for whom.
  EXPECT_EQ(ranks.writer(1).activity, control::Activity::storage);
  while (ranks.writer(0).activity != control::Activity::waiting ||
         ranks.writer(2).activity != control::Activity::waiting)
    std::this_thread::yield();
  slow.open();
  for (const auto& outcome : ranks.settle()) EXPECT_EQ(outcome.path, folder / "step-00000001");
  for (const int rank : {0, 1, 2}) EXPECT_EQ(ranks.writer(rank).activity, control::Activity::idle);
  EXPECT_TRUE(ranks.saver(0).settled());
}

TEST(CheckpointSaver, IsSeenByTheWatchdogUntilTheTrainingThreadGetsOn) {
  const TemporaryDirectory folder;
  const SmallState state(1);
  GatedFileSystem slow("manifest.json");
  SavingRanks ranks(folder.path(), {&slow, kPosix, kPosix}, 0);
  ranks.progress(0).enter(control::Progress::kMainSlot, control::Activity::waiting, 3, 14);  // for its writer
  const auto before = ranks.progress(0).at(control::Progress::kMainSlot);
  ranks.start(1, state);
  slow.await_visitor();
  EXPECT_EQ(ranks.writer(0).activity, control::Activity::storage);
  slow.open();
  while (ranks.writer(0).activity == control::Activity::storage) std::this_thread::yield();
  EXPECT_EQ(ranks.writer(0).activity, control::Activity::waiting)
      << "the save is done, and nobody has heard of it yet";
  EXPECT_EQ(ranks.progress(0).at(control::Progress::kMainSlot), before);
  ranks.settle();
  EXPECT_EQ(ranks.writer(0).activity, control::Activity::idle);
  EXPECT_EQ(ranks.progress(0).at(control::Progress::kMainSlot),
            (control::Progress::Entry{control::Activity::waiting, 3, 14, before.changes + 1}))
      << "its wait begins anew";
}

TEST(CheckpointSaver, WhoPollsHearsOnceWithoutWaiting) {
  const TemporaryDirectory folder;
  const SmallState state(1);
  SavingRanks ranks(folder.path(), kHealthy, 0);
  EXPECT_EQ(ranks.saver(2).poll(), std::nullopt);
  ranks.start(1, state);
  std::optional<checkpoint::SaveOutcome> outcome;
  while (!outcome) outcome = ranks.saver(2).poll();
  EXPECT_EQ(outcome->path, folder / "step-00000001");
  EXPECT_EQ(ranks.saver(2).poll(), std::nullopt);
  EXPECT_EQ(ranks.saver(2).settle(), std::nullopt);
}

TEST(CheckpointSaver, ARankThatDoesNotReportIsNamedAndDisturbsNothing) {
  const TemporaryDirectory folder;
  const SmallState state(1);
  GatedFileSystem stuck("model-00002");
  SavingRanks ranks(folder.path(), {kPosix, &stuck, kPosix}, 0, std::chrono::milliseconds(1));
  ranks.start(1, state);
  const auto outcome = ranks.saver(0).settle();
  ASSERT_TRUE(outcome);
  EXPECT_THAT(outcome->error, AnyOf(Mentions("rank 1 ... finish"), Mentions("ranks 1, 2 ... finish")));
  EXPECT_EQ(outcome->code, ExitCode::disk);
  stuck.open();
  EXPECT_NE(ranks.saver(1).settle()->error, "") << "it hears of it, or gives up likewise";
  EXPECT_TRUE(checkpoint::find_checkpoints(folder.path()).empty());
  SavingRanks next(folder.path(), kHealthy, 0);
  EXPECT_EQ(next.save(2, state)[2].error, "");
  EXPECT_THAT(list_directory(folder.path()), ElementsAre("step-00000002"));
}

TEST(CheckpointSaver, IgnoresWhatEarlierSavesLeftInTheMailbox) {
  const TemporaryDirectory folder;
  const SmallState state(1);
  SavingRanks ranks(folder.path(), kHealthy, 0);
  ranks.mailbox(1).send(0, "checkpoint.report", "0 0 of an earlier save");
  ranks.mailbox(1).send(0, "checkpoint.report", "0 1 and a part of one");
  ranks.mailbox(0).send(2, "checkpoint.outcome", "0 0 of an earlier save");
  for (const auto& outcome : ranks.save(1, state)) EXPECT_EQ(outcome.error, "");
}

using Tensors = std::vector<checkpoint::NamedTensor>;

/// Rank 0 and `other`, of `ranks`, save step 1; the rest do nothing.
void save_two_shares(const TemporaryDirectory& folder, int ranks, int other, const Tensors& of_first,
                     const Tensors& of_other) {
  const auto mailboxes = control::make_local_mailboxes(ranks);
  checkpoint::CheckpointWriter(folder.path(), 1).begin();
  checkpoint::Manifest manifest;
  manifest.step = 1;
  const auto saver_of = [&](int rank) {
    return std::make_unique<CheckpointSaver>(
        CheckpointSaverOptions{.directory = folder.path(),
                               .mailbox = mailboxes[static_cast<size_t>(rank)].get(),
                               .writers = {other},
                               .files = kPosix,
                               .patience = std::chrono::seconds(60)});
  };
  const auto first = saver_of(0), second = saver_of(other);
  first->start({of_first, {}, {1, 2}, {}}, manifest);
  second->start({of_other, {}, {2, 2}, {}}, manifest);
  EXPECT_EQ(first->settle()->error, "");
  EXPECT_EQ(second->settle()->path, folder / "step-00000001");
}

TEST(CheckpointSaver, ReportsOnManyTensorsTravelInPieces) {
  const TemporaryDirectory folder;
  constexpr int kTensors = 7000;  // their report takes more than a mailbox's 1 MiB
  const float value = 1;
  const auto tensors = [&](int rank) {
    Tensors named;
    for (int t = 0; t < kTensors; ++t)
      named.push_back({"rank" + std::to_string(rank) + "." + std::string(40, 'x') + std::to_string(t),
                       DType::float32, Shape{1}, &value});
    return named;
  };
  save_two_shares(folder, 2, 1, tensors(0), tensors(1));
  EXPECT_EQ(checkpoint::Checkpoint(folder / "step-00000001").tensors(checkpoint::FileKind::model).size(),
            size_t{2 * kTensors});
}

TEST(CheckpointSaver, WaitsForNobodyWithoutAShare) {
  const TemporaryDirectory folder;
  const float value = 1;
  // Rank 1 is lost.
  save_two_shares(folder, 3, 2, {{"a", DType::float32, Shape{1}, &value}},
                  {{"b", DType::float32, Shape{1}, &value}});
  EXPECT_EQ(checkpoint::Checkpoint(folder / "step-00000001").tensors(checkpoint::FileKind::model).size(), 2u);
}

TEST(CheckpointSaver, NamesTheRankThatFailedWhoeverElseWrites) {
  const TemporaryDirectory folder;
  const SmallState state(1);
  test::FailingOnce failing("model-00002");
  const auto mailboxes = control::make_local_mailboxes(4);
  checkpoint::CheckpointWriter(folder.path(), 1).begin();
  std::vector<std::unique_ptr<CheckpointSaver>> savers;
  for (const int rank : {0, 3}) {  // those between have nothing to write
    savers.push_back(std::make_unique<CheckpointSaver>(
        CheckpointSaverOptions{.directory = folder.path(),
                               .mailbox = mailboxes[static_cast<size_t>(rank)].get(),
                               .writers = {3},
                               .files = rank == 3 ? &failing : kPosix}));
    savers.back()->start(test::share_of(state, rank == 0 ? 0 : 1), state.manifest(1));
  }
  for (const auto& saver : savers) EXPECT_THAT(saver->settle()->error, StartsWith("rank 3: "));
}

TEST(CheckpointSaver, ItsThreadTakesNoSignals) {
  class Asking : public GatedFileSystem {
   public:
    Asking() : GatedFileSystem("nothing is held") {}
    std::unique_ptr<WritableFile> create(const std::string& path) override {
      sigset_t mask;
      pthread_sigmask(SIG_SETMASK, nullptr, &mask);
      blocked = sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGUSR1) == 1;
      return GatedFileSystem::create(path);
    }
    bool blocked = false;
  } files;
  const TemporaryDirectory folder;
  const SmallState state(1);
  SavingRanks ranks(folder.path(), {kPosix, &files, kPosix}, 0);
  ranks.save(1, state);
  EXPECT_TRUE(files.blocked);
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGTERM), 0) << "who starts a save goes on to take them";
}

constexpr const char* kUnsure = "the checkpoint is complete, but may not survive a power failure: ";

/// Three ranks save `step` with a fault at each operation of `faulty` in turn.
void survive_every_fault_of_a_rank(int faulty, Fault fault, bool power_failure, int64_t step, int keep) {
  for (int at = 1;; ++at) {
    SCOPED_TRACE("fault at operation " + std::to_string(at) + " of rank " + std::to_string(faulty));
    const TemporaryDirectory folder;
    const std::string directory = folder / "checkpoints";
    const SmallState one(1), two(2), three(3);
    test::save(directory, 1, one);
    const auto disk = std::make_shared<test::SharedDisk>();
    FaultyFileSystem files[3] = {{faulty == 0 ? fault : Fault::none, at, disk},
                                 {faulty == 1 ? fault : Fault::none, at, disk},
                                 {faulty == 2 ? fault : Fault::none, at, disk}};
    const auto outcomes = SavingRanks(directory, {&files[0], &files[1], &files[2]}, keep).save(step, two);
    const bool fired = files[faulty].fired();
    if (power_failure) disk->lose_unsynced();

    for (const auto& outcome : outcomes) ASSERT_EQ(outcome, outcomes[0]) << "all ranks hear the same";
    const auto& outcome = outcomes[0];
    if (outcome.path.empty()) {
      ASSERT_TRUE(fired);
      if (fault != Fault::crash) {
        ASSERT_EQ(outcome.code, ExitCode::disk);
        ASSERT_THAT(outcome.error, HasSubstr(directory));
        ASSERT_THAT(outcome.error, HasSubstr(fault == Fault::no_space ? "free there" : "Input/output error"));
        ASSERT_THAT(outcome.error,
                    StartsWith(faulty == 0 ? "" : "rank " + std::to_string(faulty) + ": cannot "));
      }
    } else if (!outcome.error.empty()) {
      ASSERT_THAT(outcome.error,
                  AnyOf(StartsWith("older checkpoints were not deleted: "), StartsWith(kUnsure)));
    }
    {
      const auto checkpoint = latest_of_all_complete(directory);
      ASSERT_TRUE(checkpoint);
      const auto state = loaded(*checkpoint);
      if (!outcome.path.empty() && !(power_failure && outcome.error.starts_with(kUnsure))) {
        ASSERT_EQ(state, two) << "what was reported as written is there";
      } else if (outcome.path.empty() && fault != Fault::crash && !power_failure) {
        ASSERT_EQ(state, one) << "what was reported as not written is not used";
      } else {
        ASSERT_TRUE(state == one || state == two);
      }
    }
    for (const auto& next : SavingRanks(directory, kHealthy, 1).save(3, three)) ASSERT_EQ(next.error, "");
    ASSERT_EQ(loaded(*latest_of_all_complete(directory)), three);
    ASSERT_THAT(list_directory(directory), ElementsAre("step-00000003"));
    if (!fired) {
      EXPECT_EQ(outcome.error, "");
      EXPECT_GT(at, faulty == 0 ? 20 : faulty == 1 ? 4 : 0) << "the faults covered what the rank does";
      return;
    }
  }
}

class EveryFaultOfEveryRank : public ::testing::TestWithParam<std::tuple<int64_t, int>> {
 protected:
  void survive(Fault fault, bool power_failure) {
    // Step 1 replaces the checkpoint that is there; 2 stands beside it.
    const auto [step, keep] = GetParam();
    for (int rank = 0; rank < SavingRanks::kRanks; ++rank)
      survive_every_fault_of_a_rank(rank, fault, power_failure, step, keep);
  }
};
INSTANTIATE_TEST_SUITE_P(StepAndKeep, EveryFaultOfEveryRank,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Values(0, 1)));

TEST_P(EveryFaultOfEveryRank, IsAnIoError) { survive(Fault::io_error, false); }
TEST_P(EveryFaultOfEveryRank, IsAFullDisk) { survive(Fault::no_space, false); }
TEST_P(EveryFaultOfEveryRank, IsAKill) { survive(Fault::crash, false); }
TEST_P(EveryFaultOfEveryRank, IsAnIoErrorBeforeAPowerFailure) { survive(Fault::io_error, true); }
TEST_P(EveryFaultOfEveryRank, IsAPowerFailure) { survive(Fault::crash, true); }

}  // namespace
}  // namespace lockstep::train
