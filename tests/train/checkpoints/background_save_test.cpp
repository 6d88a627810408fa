#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <mutex>

#include "data/test_files.h"
#include "mentions.h"
#include "train/checkpoints/gated_file_system.h"
#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

using test::GatedFileSystem;
using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kConfig = R"(
format_version: 1
model { mlp { image: 4 image: 4 image: 1 hidden: 8 classes: 3 } }
data { synthetic { samples: 24 eval_samples: 6 classes: 3 shape: 4 shape: 4 shape: 1 } }
trainer { steps: 8 global_batch: 12 virtual_replicas: 4 seed: 3 }
optimizer { learning_rate: 0.01 adamw {} }
parallel { reduction: REPRODUCIBLE bucket_bytes: 256 }
checkpoint { every_steps: 2 keep: 0 }
)";
constexpr int kRanks = 3;

/// The real file system, which keeps from creating files of a name with `failing` in it, has as much space as
/// it says, and remembers in which order folders were made and renamed.
class FailingFileSystem : public GatedFileSystem {
 public:
  explicit FailingFileSystem(std::string failing = "")
      : GatedFileSystem("nothing is held"), failing_(std::move(failing)) {}
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    if (!failing_.empty() && path.find(failing_) != std::string::npos)
      throw_io_error("create", path, path, EIO);
    return GatedFileSystem::create(path);
  }
  int64_t free_bytes(const std::string& path) override {
    return free >= 0 ? free : GatedFileSystem::free_bytes(path);
  }
  int64_t free = -1;

 private:
  std::string failing_;
};

/// What one rank's training saw.
struct RankResult {
  int64_t steps = 0;
  std::vector<int64_t> saved;  // steps, as on_checkpoint told
  std::string error;
  ExitCode code = ExitCode::done;
  uint64_t state_hash = 0;
};

class BackgroundSaves : public ::testing::Test {
 protected:
  std::vector<RankResult> train(const std::vector<std::string>& overrides, bool with_mailbox = true) {
    const config::RunConfig config = config::parse_run_config(kConfig, "test", overrides);
    const auto mailboxes = control::make_local_mailboxes(kRanks);
    std::vector<RankResult> results(kRanks);
    run_ranks(kRanks, [&](int rank, comm::Communicator& world) {
      const auto r = static_cast<size_t>(rank);
      Worker worker(config, {.rank = rank, .world_size = kRanks, .asynchronous = {}});
      worker.connect(world);
      TrainerEvents events;
      events.on_step = [&](const StepRecord& record) {
        if (on_step_) on_step_(rank, record.step, worker);
      };
      events.before_checkpoint = before_checkpoint_;
      events.on_checkpoint = [&](int64_t step, const std::string&) { results[r].saved.push_back(step); };
      TrainerRunOptions options{.output_directory = folder_.path(), .stop_requested = {}};
      options.mailbox = with_mailbox ? mailboxes[r].get() : nullptr;
      if (files_[r] != nullptr) options.files = files_[r];
      Trainer trainer(worker, world, events, options);
      trainer.prepare();
      try {
        trainer.run();
      } catch (const comm::CollectiveError& error) {
        results[r].error = error.what();
        results[r].code = error.code();
      }
      results[r].steps = trainer.next_step();
      results[r].state_hash = state_hash_of(worker, world);
    });
    for (const auto& result : results) {
      EXPECT_EQ(result.error, results[0].error);
      EXPECT_EQ(result.code, results[0].code);
      EXPECT_EQ(result.steps, results[0].steps);
      EXPECT_EQ(result.saved, results[0].saved);
    }
    return results;
  }

  std::vector<int64_t> found() const {
    std::vector<int64_t> steps;
    for (const auto& checkpoint : checkpoint::find_checkpoints(directory_)) {
      EXPECT_EQ(checkpoint::Checkpoint(checkpoint.path).manifest().step, checkpoint.step);
      steps.push_back(checkpoint.step);
    }
    std::reverse(steps.begin(), steps.end());
    return steps;
  }

  TemporaryDirectory folder_;
  std::string directory_ = folder_ / "checkpoints";
  FileSystem* files_[kRanks] = {};
  std::function<void(int rank, int64_t step, const Worker&)> on_step_;
  std::function<void(int64_t)> before_checkpoint_;
};

TEST_F(BackgroundSaves, HoldWhatTheStepLeftWhileTrainingGoesOn) {
  GatedFileSystem slow("step-00000002.tmp/model-00002");
  files_[1] = &slow;
  uint64_t hash = 0;
  on_step_ = [&](int rank, int64_t step, const Worker& worker) {
    if (rank == 0 && step == 2) hash = state_hash_of(worker, *comm::make_solo_communicator());
    // Two steps behind the snapshot, its checkpoint is still being written.
    if (rank == 1 && step == 4) {
      slow.await_visitor();
      EXPECT_THAT(found(), IsEmpty());
      EXPECT_NE(state_hash_of(worker, *comm::make_solo_communicator()), hash);
      slow.open();
    }
  };
  const auto results = train({});
  EXPECT_EQ(results[0].error, "");
  EXPECT_THAT(results[0].saved, ElementsAre(2, 4, 6, 8));
  EXPECT_THAT(found(), ElementsAre(2, 4, 6, 8));
  EXPECT_EQ(checkpoint::Checkpoint(directory_ + "/step-00000002").manifest().state_hash, hash);
  EXPECT_EQ(checkpoint::Checkpoint(directory_ + "/step-00000008").manifest().state_hash,
            results[0].state_hash);
}

TEST_F(BackgroundSaves, BeginOnlyWhenTheOneBeforeHasEnded) {
  // Rank 0 of the first save is let go when the next step is complete: the second save follows at once.
  class Recording : public GatedFileSystem {
   public:
    Recording() : GatedFileSystem("step-00000001.tmp/model") {}
    void make_directory(const std::string& path) override {
      add("make " + path);
      GatedFileSystem::make_directory(path);
    }
    void rename(const std::string& from, const std::string& to) override {
      add("rename " + from);
      GatedFileSystem::rename(from, to);
    }
    std::vector<std::string> done;

   private:
    void add(std::string what) {
      what.erase(what.find(' ') + 1, what.rfind('/') - what.find(' '));
      const std::lock_guard lock(mutex_);
      done.push_back(std::move(what));
    }
    std::mutex mutex_;
  } files;
  files_[0] = &files;
  on_step_ = [&](int rank, int64_t step, const Worker&) {
    if (rank == 2 && step == 2) files.open();
  };
  train({"trainer.steps=2", "checkpoint.every_steps=1"});
  EXPECT_THAT(files.done,
              ElementsAre("make checkpoints", "make step-00000001.tmp", "rename step-00000001.tmp",
                          "make checkpoints", "make step-00000002.tmp", "rename step-00000002.tmp"));
}

TEST_F(BackgroundSaves, OfOneRankThatFailsStopAllRanksAtOneStep) {
  FailingFileSystem failing("step-00000002.tmp");
  files_[1] = &failing;
  const auto results = train({});
  EXPECT_EQ(results[0].code, ExitCode::disk);
  EXPECT_THAT(results[0].error, AllOf(Mentions("step 2 ... rank 1"), HasSubstr("Input/output error")));
  EXPECT_LE(results[0].steps, 5)
      << "the save of step 4 waits for that of step 2, and the step behind it agrees to stop";
  EXPECT_EQ(found().back(), results[0].steps) << "what was trained until then is saved all the same";
}

TEST_F(BackgroundSaves, ThatFailMayBeGoneOnFrom) {
  FailingFileSystem failing("step-00000002.tmp");
  files_[1] = &failing;
  ::testing::internal::CaptureStderr();
  const auto results = train({"checkpoint.on_failure=CONTINUE"});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Mentions("step 2 ... rank 1"));
  EXPECT_EQ(results[0].error, "");
  EXPECT_EQ(results[0].steps, 8);
  EXPECT_THAT(results[0].saved, ElementsAre(4, 6, 8));
  EXPECT_THAT(found(), ElementsAre(4, 6, 8));
}

TEST_F(BackgroundSaves, OfTheBestThatFailLeaveTheBestBeforeIt) {
  FailingFileSystem failing("step-00000006.tmp");
  files_[1] = &failing;
  const auto results = train({"checkpoint={every_steps: 1 keep: 1 keep_best: true on_failure: CONTINUE}",
                              "trainer.eval_every_steps=3", "trainer.steps=7", "trainer.eval_at_end=false"});
  EXPECT_EQ(results[0].error, "");
  ASSERT_THAT(found(), Contains(7));
  const auto newest = checkpoint::read_manifest(directory_ + "/step-00000007");
  ASSERT_EQ(newest.best_step, 6) << "the loss falls";
  EXPECT_THAT(found(), ElementsAre(3, 7));
}

TEST_F(BackgroundSaves, ThatCannotBeginMayBeGoneOnFromWhateverTheReason) {
  before_checkpoint_ = [&](int64_t step) {
    if (step == 2) throw Error("something else is wrong");
    if (step == 4) throw IoError("the disk is wrong");
  };
  ::testing::internal::CaptureStderr();
  const auto results = train({"checkpoint.on_failure=CONTINUE"});
  const std::string warnings = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(warnings, Mentions("step 2 ... rank 0"));
  EXPECT_THAT(warnings, Mentions("step 4 ... rank 0"));
  EXPECT_EQ(results[0].error, "");
  EXPECT_EQ(results[0].steps, 8);
  EXPECT_THAT(found(), ElementsAre(6, 8));

  before_checkpoint_ = [&](int64_t step) {
    if (step == 2) throw Error("something else is wrong");
  };
  std::filesystem::remove_all(directory_);
  const auto stopped = train({});
  EXPECT_EQ(stopped[0].code, ExitCode::internal);
  EXPECT_EQ(stopped[0].steps, 3) << "the step behind it agrees to stop";
  EXPECT_THAT(found(), ElementsAre(3));
}

TEST_F(BackgroundSaves, OfTheEndMustNotFail) {
  FailingFileSystem failing("step-00000008.tmp");
  files_[2] = &failing;
  const auto results = train({"checkpoint.on_failure=CONTINUE"});
  EXPECT_THAT(results[0].error, HasSubstr("step 8"));
  EXPECT_EQ(results[0].code, ExitCode::disk);
  EXPECT_THAT(found(), ElementsAre(2, 4, 6));
}

TEST_F(BackgroundSaves, WithoutSpaceDoNotBegin) {
  FailingFileSystem small;
  small.free = 1000;
  files_[0] = &small;
  const auto results = train({"checkpoint.every_steps=0"});
  EXPECT_EQ(results[0].code, ExitCode::disk);
  EXPECT_THAT(results[0].error, AllOf(HasSubstr("step-00000008: expected "), HasSubstr("1000 B")));
  EXPECT_THAT(list_directory(directory_), IsEmpty());
}

TEST_F(BackgroundSaves, ComeBehindWhatTheyMustNotOutlive) {
  before_checkpoint_ = [&](int64_t step) {
    EXPECT_THAT(list_directory(folder_.path()), Not(Contains("checkpoints"))) << "nothing is written yet";
    throw IoError("metrics of step " + std::to_string(step) + " cannot be written");
  };
  const auto results = train({"checkpoint.every_steps=0"});
  EXPECT_THAT(results[0].error, Mentions("rank 0 ... step 8"));
  EXPECT_EQ(results[0].code, ExitCode::disk);
}

TEST_F(BackgroundSaves, InTheForegroundAreCompleteBeforeTheNextStep) {
  on_step_ = [&](int rank, int64_t step, const Worker&) {
    if (rank != 2) return;
    std::vector<int64_t> before;
    for (int64_t saved = 2; saved < step; saved += 2) before.push_back(saved);
    EXPECT_EQ(found(), before);
  };
  for (const bool with_mailbox : {true, false}) {
    std::filesystem::remove_all(directory_);
    const auto results =
        train({with_mailbox ? "checkpoint.background=false" : "checkpoint.background=true"}, with_mailbox);
    EXPECT_THAT(results[0].saved, ElementsAre(2, 4, 6, 8));
  }
  on_step_ = {};
  std::filesystem::remove_all(directory_);
  FailingFileSystem failing("step-00000004.tmp");
  files_[1] = &failing;
  const auto results = train({"checkpoint.background=false"});
  EXPECT_THAT(results[0].error, HasSubstr("rank 1: cannot create"));
  EXPECT_EQ(results[0].steps, 5);
}

/// A mailbox to which nobody tells how saves have ended before it is opened.
class HoldingMailbox : public control::Mailbox {
 public:
  explicit HoldingMailbox(control::Mailbox& real) : real_(real) {}
  void open() { open_.count_down(); }
  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  void send(int to, std::string_view topic, std::string_view text) override { real_.send(to, topic, text); }
  std::optional<Message> receive(std::string_view topic, Deadline deadline) override {
    if (topic == "checkpoint.outcome") open_.wait();
    return real_.receive(topic, deadline);
  }

 private:
  control::Mailbox& real_;
  std::latch open_{1};
};

TEST(Trainer, SavesAgainOnAllRanksWhereOneAloneHasHeardThatASaveFailed) {
  const TemporaryDirectory folder;
  const config::RunConfig config = config::parse_run_config(
      kConfig, "test", {"checkpoint.every_steps=0", "checkpoint.on_failure=CONTINUE"});
  const auto mailboxes = control::make_local_mailboxes(2);
  HoldingMailbox late(*mailboxes[1]);
  test::FailingOnce failing("model-00001");
  std::vector<int64_t> saved[2];
  int begun = 0;
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    Worker worker(config, {.rank = rank, .world_size = 2, .asynchronous = {}});
    worker.connect(world);
    TrainerEvents events;
    events.before_checkpoint = [&](int64_t) {
      if (++begun == 2) late.open();
    };
    events.on_checkpoint = [&](int64_t step, const std::string&) { saved[rank].push_back(step); };
    TrainerRunOptions options{.output_directory = folder.path(), .stop_requested = {}};
    options.mailbox = rank == 0 ? mailboxes[0].get() : &late;
    if (rank == 0) options.files = &failing;
    Trainer trainer(worker, world, events, options);
    trainer.prepare();
    trainer.advance();
    trainer.save_now();
    if (rank == 0) trainer.abandon();  // which hears of it
    trainer.save_now();
    trainer.finish();
  });
  EXPECT_EQ(begun, 2);
  for (const auto& steps : saved) EXPECT_THAT(steps, ElementsAre(1));
}

/// The real file system, which looks at the training thread's slot before each operation of a file.
class WatchingFileSystem : public GatedFileSystem {
 public:
  explicit WatchingFileSystem(const control::Progress& progress)
      : GatedFileSystem("nothing is held"), progress_(progress) {}
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    look();
    return std::make_unique<File>(*this, GatedFileSystem::create(path));
  }
  std::vector<control::Progress::Entry> seen;

 private:
  class File : public WritableFile {
   public:
    File(WatchingFileSystem& owner, std::unique_ptr<WritableFile> real)
        : owner_(owner), real_(std::move(real)) {}
    void write(const void* data, size_t size_bytes) override {
      owner_.look();
      real_->write(data, size_bytes);
    }
    void sync() override {
      owner_.look();
      real_->sync();
    }
    void close() override {
      owner_.look();
      real_->close();
    }

   private:
    WatchingFileSystem& owner_;
    std::unique_ptr<WritableFile> real_;
  };
  void look() { seen.push_back(progress_.at(control::Progress::kMainSlot)); }

  const control::Progress& progress_;
};

TEST(RunCheckpoints, GiveEachOperationALimitOfItsOwn) {
  const TemporaryDirectory folder;
  const config::RunConfig config = config::parse_run_config(kConfig, "test", {});
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    Worker worker(config, {.rank = rank, .world_size = 2, .asynchronous = {}});
    worker.connect(world);
    control::Progress progress;
    WatchingFileSystem files(progress);
    // Without a mailbox, the training thread writes.
    RunCheckpoints checkpoints(worker,
                               {.output_directory = folder.path(), .progress = &progress, .files = &files});
    checkpoints.save(world, 5);
    EXPECT_GE(files.seen.size(), 4u) << "at least one file: made, written, synced, closed";
    for (size_t i = 0; i < files.seen.size(); ++i) {
      EXPECT_EQ(files.seen[i].activity, control::Activity::storage);
      if (i > 0) {
        EXPECT_GT(files.seen[i].changes, files.seen[i - 1].changes);
      }
    }
    EXPECT_NE(progress.at(control::Progress::kMainSlot).activity, control::Activity::storage);

    const uint32_t before = progress.at(control::Progress::kMainSlot).changes;
    checkpoints.restore(world, folder / "checkpoints/step-00000005");
    // Each of five files and its end; each tensor; two hashes; before the ranks compare.
    const auto tensors = parameter_tensors(worker).size() + optimizer_tensors(worker).size();
    EXPECT_EQ(progress.at(control::Progress::kMainSlot).changes - before, 5 * 2 + tensors + 2 + 1);
    EXPECT_EQ(progress.at(control::Progress::kMainSlot).activity, control::Activity::storage);
  });
}

TEST(RunCheckpoints, CarryWhatTheTrainingIsBesidesItsTensors) {
  const TemporaryDirectory folder;
  const config::RunConfig config = config::parse_run_config(kConfig, "test", {});
  const TrainingProgress progress{.pending_evaluation = true,
                                  .skipped_steps = 3,
                                  .overflowed_steps = 2,
                                  .loss_scaling = {.scale = 0.25, .good_steps = 7}};
  const auto mailboxes = control::make_local_mailboxes(2);
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    Worker worker(config, {.rank = rank, .world_size = 2, .asynchronous = {}});
    worker.connect(world);
    RunCheckpoints checkpoints(
        worker, {.output_directory = folder.path(), .mailbox = mailboxes[static_cast<size_t>(rank)].get()});
    EXPECT_EQ(checkpoints.poll(), std::nullopt);
    checkpoints.save(world, 5, progress);
    checkpoints.save(world, 6);
    checkpoints.settle();
    EXPECT_EQ(checkpoints.poll()->step, 5);
    EXPECT_EQ(checkpoints.poll()->step, 6);
    EXPECT_EQ(checkpoints.poll(), std::nullopt);
  });
  run_ranks(1, [&](int, comm::Communicator& world) {
    Worker worker(config, {.rank = 0, .world_size = 1, .asynchronous = {}});
    worker.connect(world);
    RunCheckpoints checkpoints(worker, {.output_directory = folder.path()});
    const auto earlier = checkpoints.restore(world, folder / "checkpoints/step-00000005");
    EXPECT_EQ(earlier.position.step, 5);
    EXPECT_EQ(earlier.progress, progress);
    EXPECT_EQ(checkpoints.restore_newest(world)->progress, TrainingProgress{});
  });
}

TEST(BoundaryPrograms, SaveEveryTensorOnceAndKeepItsCopyFromOtherPrograms) {
  const config::RunConfig config = config::parse_run_config(kConfig, "test", {});
  const compile::CompiledRun run = compile_run(config, {.world_size = 4});
  std::map<std::pair<program::Role, int64_t>, int> reads;  // by place, the same on all replicas
  int64_t read_bytes = 0, owned_bytes = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const auto programs = run.compile(rank);
    for (const auto& instruction : programs.boundary.instructions)
      for (const auto& operand : instruction.operands)
        if (instruction.kind == program::InstructionKind::snapshot &&
            operand.access == program::Access::read) {
          const auto& buffer = programs.boundary.buffers[static_cast<size_t>(operand.range.buffer)];
          ++reads[{operand.role, buffer.offset + operand.range.offset}];
          read_bytes += operand.range.size_bytes;
        }
    const program::ByteRange copy = [&]() -> program::ByteRange {
      for (const auto& operand : programs.boundary.instructions[0].operands)
        if (operand.role == program::Role::destination) return operand.range;
      return {};
    }();
    ASSERT_GE(copy.buffer, 0);
    for (const program::Program* program : {&programs.step, &programs.evaluate, &programs.boundary}) {
      const auto& buffer = program->buffers[static_cast<size_t>(copy.buffer)];
      EXPECT_EQ(buffer.name, "snapshot");
      EXPECT_EQ(buffer.size_bytes, layout::size_bytes_of(run.checkpoint_shares()[static_cast<size_t>(rank)]));
      EXPECT_EQ(buffer.offset, programs.boundary.buffers[static_cast<size_t>(copy.buffer)].offset);
      for (const auto& instruction : program->instructions)
        for (const auto& operand : instruction.operands)
          EXPECT_TRUE(operand.range.buffer != copy.buffer ||
                      instruction.kind == program::InstructionKind::snapshot);
    }
  }
  for (const auto& [place, times] : reads) EXPECT_EQ(times, 1);
  for (const auto& parameter : run.graph().parameters)
    owned_bytes += 3 * 4 * parameter.spec.shape.count();  // AdamW: two slots
  EXPECT_EQ(read_bytes, owned_bytes);
}

}  // namespace
}  // namespace lockstep::train
