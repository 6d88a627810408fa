#include "train/loop/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "data/test_files.h"
#include "lockstep/error.h"
#include "train/checkpoints/best_checkpoint.h"
#include "train/thread_ranks.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kTrainerConfig = R"(
format_version: 1
model { mlp { image: 4 image: 4 image: 1 hidden: 8 classes: 3 } }
data { synthetic { samples: 40 eval_samples: 24 classes: 3 shape: 4 shape: 4 shape: 1 } }
trainer { steps: 12 global_batch: 8 virtual_replicas: 4 eval_every_steps: 5 }
optimizer { learning_rate: 0.01 adam {} }
parallel { reduction: REPRODUCIBLE }
checkpoint { resume_automatic: true }
)";

/// Called before each instruction of a training on threads.
using Before =
    std::function<void(int rank, int64_t step, const Worker&, const program::Program&, int instruction)>;

struct Ended {
  TrainingOutcome outcome;
  std::vector<int64_t> evaluated;
  uint64_t state_hash = 0;
  std::string error;
};

class TrainerOnThreads : public testing::Test {
 protected:
  /// `adjust` and `before` are told the rank. Checks that all ranks end alike; which step each was in when a
  /// difference was found is its own.
  Ended train(const std::vector<std::string>& overrides,
              const std::function<void(TrainerRunOptions&, int rank)>& adjust = {}, const Before& before = {},
              int ranks = 2) const {
    const config::RunConfig config = config::parse_run_config(kTrainerConfig, "test", overrides);
    std::vector<Ended> runs(static_cast<size_t>(ranks));
    const auto mailboxes = control::make_local_mailboxes(ranks);
    run_ranks(ranks, [&](int rank, comm::Communicator& world) {
      Ended& run = runs[static_cast<size_t>(rank)];
      Trainer* trainer = nullptr;
      WorkerOptions worker_options{.rank = rank, .world_size = ranks, .asynchronous = {}};
      if (before)
        worker_options.before_instruction = [&](const Worker& worker, const program::Program& program,
                                                uint64_t iteration, int instruction) {
          const bool trains = program.name == "step";
          before(rank, trains ? static_cast<int64_t>(iteration) + 1 : trainer->next_step() + 1, worker,
                 program, instruction);
        };
      Worker worker(config, worker_options);
      worker.connect(world);
      TrainerEvents events;
      events.on_evaluation = [&](const EvaluationRecord& record) { run.evaluated.push_back(record.step); };
      TrainerRunOptions options;
      options.output_directory = directory_;
      options.mailbox = mailboxes[static_cast<size_t>(rank)].get();
      if (adjust) adjust(options, rank);
      Trainer own(worker, world, std::move(events), options);
      trainer = &own;
      try {
        own.prepare();
        if (act_) act_(own);
        run.outcome = own.run();
      } catch (const comm::CollectiveError& error) {
        run.error = error.what();
      }
      run.state_hash = state_hash_of(worker, world);
    });
    for (const auto& run : runs) {
      EXPECT_EQ(run.error.empty(), runs[0].error.empty()) << run.error << runs[0].error;
      EXPECT_EQ(run.outcome.steps, runs[0].outcome.steps);
      EXPECT_EQ(run.evaluated, runs[0].evaluated);
    }
    return runs[0];
  }

  std::function<void(Trainer&)> act_;  // between prepare() and run()
  const test::TemporaryDirectory folder_;
  std::string directory_ = folder_ / "run";
};

/// The gradients that reach the first instruction of `kind`, on one rank.
float* first_gradient(const Worker& worker, const program::Program& program, int instruction) {
  for (const auto& operand : program.instructions[static_cast<size_t>(instruction)].operands)
    if (operand.role == program::Role::gradients)
      return reinterpret_cast<float*>(worker.memory().at(program, operand.range));
  return nullptr;
}

TEST_F(TrainerOnThreads, StopsAfterTheStepThatWasAskedForAlsoWhereAnEvaluationLiesBefore) {
  const auto after_six = [](TrainerRunOptions& options, int) { options.stop_after = 6; };
  const Ended first = train({}, after_six);
  EXPECT_EQ(first.outcome.steps, 6);
  EXPECT_TRUE(first.outcome.stopped);
  EXPECT_THAT(first.evaluated, ElementsAre(5));
  const Ended second = train({});
  EXPECT_EQ(second.outcome.steps, 12);
  EXPECT_THAT(second.evaluated, ElementsAre(10, 12));
}

TEST_F(TrainerOnThreads, AStopWithinAnEvaluationLosesNoStepAndTheEvaluationIsMadeUpFor) {
  // 24 samples take 3 iterations of 8; rank 1 asks in the second.
  int asked = 0;
  const Ended first = train({}, [&](TrainerRunOptions& options, int rank) {
    if (rank == 1) options.stop_requested = [&asked] { return ++asked == 5 + 2; };  // five steps come before
  });
  EXPECT_EQ(first.outcome.steps, 5);
  EXPECT_TRUE(first.outcome.stopped);
  EXPECT_THAT(first.evaluated, IsEmpty());
  const Ended second = train({});
  EXPECT_EQ(second.outcome.first_step, 5);
  EXPECT_THAT(second.evaluated, ElementsAre(5, 10, 12));
}

TEST_F(TrainerOnThreads, AStopWithinAnEvaluationThatIsMadeUpForInAnotherFolderSavesThere) {
  int asked = 0;
  train({}, [&](TrainerRunOptions& options, int rank) {
    if (rank == 1) options.stop_requested = [&asked] { return ++asked == 5 + 2; };
  });
  const std::string before = std::exchange(directory_, folder_ / "other");
  const Ended second =
      train({"checkpoint.resume_path='" + before + "'"}, [](TrainerRunOptions& options, int rank) {
        if (rank == 1) options.stop_requested = [] { return true; };
      });
  EXPECT_EQ(second.outcome.steps, 5);
  EXPECT_TRUE(second.outcome.stopped);
  EXPECT_EQ(checkpoint::find_checkpoints(directory_ + "/checkpoints").at(0).step, 5);
  const Ended third = train({});
  EXPECT_EQ(third.outcome.first_step, 5);
  EXPECT_THAT(third.evaluated, ElementsAre(5, 10, 12));
}

TEST_F(TrainerOnThreads, AnEvaluationOfTheCallersOwnTakesNoPlannedOnesPlace) {
  int asked = 0;
  train({}, [&](TrainerRunOptions& options, int rank) {
    if (rank == 1) options.stop_requested = [&asked] { return ++asked == 5 + 1; };
  });
  act_ = [](Trainer& trainer) {
    EXPECT_EQ(trainer.next_step(), 5);
    EXPECT_EQ(trainer.evaluate_now()->step, 5);
  };
  const Ended second = train({});
  EXPECT_THAT(second.evaluated, ElementsAre(5, 5, 10, 12));
  EXPECT_FALSE(second.outcome.stopped);
}

TEST_F(TrainerOnThreads, WhatWasEvaluatedBeforeParametersChangedDoesNotCount) {
  act_ = [](Trainer& trainer) {
    while (trainer.advance()) {
    }
    EXPECT_TRUE(trainer.evaluate_now());
    trainer.parameters_changed();
  };
  EXPECT_FALSE(train({"trainer.eval_at_end=false"}).outcome.evaluation);
}

TEST_F(TrainerOnThreads, AnEvaluationThatNothingIsLeftForIsDropped) {
  int asked = 0;
  train({}, [&](TrainerRunOptions& options, int rank) {
    if (rank == 1) options.stop_requested = [&asked] { return ++asked == 5 + 1; };
  });
  const Ended second = train(
      {"data.synthetic.eval_samples=0", "trainer.eval_every_steps=0", "checkpoint.allow_config_change=true"});
  EXPECT_EQ(second.error, "");
  EXPECT_EQ(second.outcome.steps, 12);
  EXPECT_THAT(second.evaluated, IsEmpty());
}

TEST_F(TrainerOnThreads, EarlyStoppingCountsOnWhereTheRunIsResumed) {
  const std::vector<std::string> overrides = {"trainer.early_stopping=3", "trainer.eval_every_steps=2",
                                              "optimizer.learning_rate=1e-30"};
  const Ended first = train(overrides, [](TrainerRunOptions& options, int) { options.stop_after = 5; });
  EXPECT_FALSE(first.outcome.ended_early);
  const Ended second = train(overrides);
  EXPECT_EQ(second.outcome.first_step, 5);
  EXPECT_EQ(second.outcome.steps, 8);  // evaluated after 2, 4, 6 and 8
  EXPECT_TRUE(second.outcome.ended_early);
  EXPECT_EQ(second.outcome.evaluations.best_step, 2);
}

TEST_F(TrainerOnThreads, OtherEvaluationDataBeginTheHistoryAnew) {
  const std::vector<std::string> overrides = {"trainer.early_stopping=3", "trainer.eval_every_steps=2",
                                              "optimizer.learning_rate=1e-30"};
  train(overrides, [](TrainerRunOptions& options, int) { options.stop_after = 5; });
  const Ended second =
      train({"trainer.early_stopping=3", "trainer.eval_every_steps=2", "optimizer.learning_rate=1e-30",
             "data.synthetic.eval_samples=16", "checkpoint.allow_config_change=true"});
  EXPECT_EQ(second.outcome.evaluations.best_step, 6);
}

/// Whatever lies in the folder in which a run goes on: what it has been through before counts.
TEST_F(TrainerOnThreads, EarlyStoppingCountsOnInAnotherFolder) {
  const std::vector<std::string> overrides = {"trainer.early_stopping=3", "trainer.eval_every_steps=2",
                                              "optimizer.learning_rate=1e-30", "checkpoint.keep_best=true"};
  const std::string old = directory_;
  train(overrides, [](TrainerRunOptions& options, int) { options.stop_after = 5; });
  std::vector<std::string> from_there = overrides;
  from_there.push_back("checkpoint.resume_path=" + old);
  for (const bool holds_another_run : {false, true}) {
    directory_ = folder_ / (holds_another_run ? "used" : "new");
    if (holds_another_run)
      train({"trainer.eval_every_steps=2", "checkpoint.every_steps=2", "trainer.seed=9", "trainer.steps=4"});
    const Ended second = train(from_there);
    EXPECT_EQ(second.outcome.first_step, 5);
    EXPECT_EQ(second.outcome.steps, 8);  // evaluated after 2, 4, 6 and 8
    EXPECT_TRUE(second.outcome.ended_early);
    EXPECT_EQ(second.outcome.evaluations.best_step, 2);
    // The best one is in the other folder, and what is here of the same step is another run's.
    const std::string checkpoints = directory_ + "/checkpoints";
    try {
      best_checkpoint(checkpoints, checkpoint::find_checkpoints(checkpoints).front().path, directory_);
      FAIL() << "another run's checkpoint was taken for the best";
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr("resumed from"));
    }
  }
}

TEST_F(TrainerOnThreads, AStopInTheLastEvaluationIsAStop) {
  int asked = 0;
  const Ended first = train({"trainer.eval_every_steps=0"}, [&](TrainerRunOptions& options, int rank) {
    if (rank == 0) options.stop_requested = [&asked] { return ++asked == 12 + 1; };
  });
  EXPECT_EQ(first.outcome.steps, 12);
  EXPECT_TRUE(first.outcome.stopped);
  EXPECT_THAT(first.evaluated, IsEmpty());
  const Ended second = train({"trainer.eval_every_steps=0"});
  EXPECT_FALSE(second.outcome.stopped);
  EXPECT_THAT(second.evaluated, ElementsAre(12));
}

TEST_F(TrainerOnThreads, SkippedStepsCountOnWhenTheRunIsResumed) {
  const auto nan_at = [](int64_t bad) {
    return [bad](int, int64_t step, const Worker& worker, const program::Program& program, int instruction) {
      if (program.name == "step" && step == bad &&
          program.instructions[static_cast<size_t>(instruction)].kind == program::InstructionKind::norm)
        *first_gradient(worker, program, instruction) = std::numeric_limits<float>::quiet_NaN();
    };
  };
  const auto stop_at_six = [](TrainerRunOptions& options, int) { options.stop_after = 6; };
  const Ended first = train({"trainer.nonfinite=SKIP", "trainer.nonfinite_limit=2"}, stop_at_six, nan_at(3));
  EXPECT_EQ(first.error, "");
  EXPECT_EQ(first.outcome.skipped_steps, 1);
  const Ended second = train({"trainer.nonfinite=SKIP", "trainer.nonfinite_limit=2"}, {}, nan_at(9));
  EXPECT_THAT(second.error,
              AllOf(HasSubstr("step 9"), HasSubstr("skipped step 2"), HasSubstr("nonfinite_limit is 2")));
}

TEST_F(TrainerOnThreads, ASkippedFirstStepLeavesAdamAsIfItHadNeverBeen) {
  // With constant gradients of one sign, Adam's first update is the learning rate itself, whichever step it
  // is made in.
  const auto nan_first = [](int, int64_t step, const Worker& worker, const program::Program& program,
                            int instruction) {
    if (program.name == "step" && step <= 3 &&
        program.instructions[static_cast<size_t>(instruction)].kind == program::InstructionKind::norm)
      *first_gradient(worker, program, instruction) = std::numeric_limits<float>::quiet_NaN();
  };
  float largest = 0;
  const auto measure = [&](int rank, int64_t step, const Worker& worker, const program::Program& program,
                           int instruction) {
    nan_first(rank, step, worker, program, instruction);
    static thread_local std::vector<float> before;
    if (program.name != "step" || rank != 0 || instruction != 0) return;
    const float* weights = worker.parameter_data(0);
    const int64_t count = worker.compiled().graph().parameters[0].spec.shape.count();
    if (step == 4) before.assign(weights, weights + count);
    if (step == 5)
      for (int64_t i = 0; i < count; ++i)
        largest = std::max(largest, std::abs(weights[i] - before[static_cast<size_t>(i)]));
  };
  const Ended run =
      train({"trainer.nonfinite=SKIP", "trainer.steps=5", "trainer.eval_every_steps=0"}, {}, measure);
  EXPECT_EQ(run.error, "");
  EXPECT_EQ(run.outcome.skipped_steps, 3);
  EXPECT_NEAR(largest, 0.01, 1e-5);
}

TEST_F(TrainerOnThreads, AGradientThatIsNotFiniteOnOneRankAloneIsADivergenceThatAllReport) {
  const auto damage = [](int rank, int64_t step, const Worker& worker, const program::Program& program,
                         int instruction) {
    if (rank == 1 && step == 4 && program.name == "step" &&
        program.instructions[static_cast<size_t>(instruction)].kind == program::InstructionKind::norm)
      *first_gradient(worker, program, instruction) = std::numeric_limits<float>::infinity();
  };
  for (const char* policy :
       {"trainer.nonfinite=LOCATE", "trainer.nonfinite=SKIP", "trainer.nonfinite=STOP"}) {
    const Ended run = train({policy}, {}, damage);
    EXPECT_THAT(run.error, AllOf(HasSubstr("step 4"), HasSubstr("fc1.weight"))) << policy;
  }
}

TEST_F(TrainerOnThreads, AGradientThatDiffersOnOneRankIsFoundInTheNextStep) {
  const auto damage = [](int rank, int64_t step, const Worker& worker, const program::Program& program,
                         int instruction) {
    if (rank == 2 && step == 4 && program.name == "step" &&
        program.instructions[static_cast<size_t>(instruction)].kind == program::InstructionKind::norm)
      *first_gradient(worker, program, instruction) += 1;
  };
  const Ended run = train({"trainer.check_every_steps=1000"}, {}, damage, 3);
  EXPECT_THAT(run.error, AllOf(HasSubstr("step 4"), HasSubstr("rank 2 (host ")));
}

}  // namespace
}  // namespace lockstep::train
