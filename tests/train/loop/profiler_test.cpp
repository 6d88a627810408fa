#include "train/loop/profiler.h"

#include <gtest/gtest.h>

#include <set>

#include "train/loop/divided_models.h"
#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

model::Profile measure(const config::RunConfig& config, const std::string& layout, int64_t warm_up = 1) {
  const int ranks = processes_of(layout);
  std::vector<model::Profile> profiles(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int rank, comm::Communicator& world) {
    Worker worker(with(config, layout), {.rank = rank, .world_size = ranks});
    worker.connect(world);
    Profiler profiler(worker, warm_up);
    TrainerEvents events;
    events.on_step = [&](const StepRecord& step) { profiler.end_step(step.skipped); };
    Trainer trainer(worker, world, std::move(events),
                    {.output_directory = "",
                     .observer = [&](const run::KernelObservation& seen) { profiler.observe(seen); }});
    trainer.prepare();
    trainer.run();
    profiles[static_cast<size_t>(rank)] = profiler.result(world);
  });
  for (const model::Profile& profile : profiles) EXPECT_EQ(profile, profiles[0]) << layout;
  return profiles[0];
}

/// "name phase" of all that takes time.
std::set<std::string> phases_of(const model::Profile& profile) {
  std::set<std::string> phases;
  for (const auto& node : profile.nodes) {
    if (node.seconds.forward > 0) phases.insert(node.name + " forward");
    if (node.seconds.backward_input > 0) phases.insert(node.name + " backward input");
    if (node.seconds.backward_weight > 0) phases.insert(node.name + " backward weight");
  }
  return phases;
}

TEST(Profiler, MeasuresEachLayerOnWhateverRankHasIt) {
  const config::RunConfig config = config_of(kGpt);
  const model::Profile one = measure(config, "dp=1");
  const std::set<std::string> phases = phases_of(one);
  for (const char* expected : {"wte forward", "wte backward weight", "h.0.attn.core forward",
                               "h.0.attn.core backward input", "lm_head backward weight", "loss forward"})
    EXPECT_TRUE(phases.contains(expected)) << expected;
  EXPECT_FALSE(phases.contains("wte backward input"));
  EXPECT_GT(one.update_seconds, 0);
  EXPECT_EQ(one.micro_batch, 1);
  EXPECT_EQ(one.device, "cpu");
  for (const char* layout : {"dp=2,pp=2", "dp=1,pp=3,schedule=zero_bubble", "dp=1,pp=2,recompute=full",
                             "dp=2,shard=optimizer", "dp=2,sync=ps"}) {
    const model::Profile profile = measure(config, layout);
    EXPECT_EQ(phases_of(profile), phases) << layout;
    EXPECT_GT(profile.update_seconds, 0) << layout;
  }
}

TEST(Profiler, OfNothingButWarmUpHasNoTimes) {
  const model::Profile none = measure(config_of(kMlp), "dp=1", 5);
  EXPECT_TRUE(phases_of(none).empty());
  EXPECT_EQ(none.update_seconds, 0);
}

TEST(Profiler, SeesWhatIsProposedAsAPartOfUpdates) {
  std::set<program::InstructionKind> kinds;
  run_ranks(1, [&](int, comm::Communicator& world) {
    Worker worker(with(config_of(kMlp, {"optimizer.lamb={}"}), "dp=1"), {});
    worker.connect(world);
    const auto observe = [&](const run::KernelObservation& seen) {
      if (seen.call == nullptr) kinds.insert(worker.programs().step.instruction(seen.instruction).kind);
    };
    Trainer trainer(worker, world, {}, {.output_directory = "", .observer = observe});
    trainer.prepare();
    trainer.run();
  });
  EXPECT_EQ(kinds, (std::set{program::InstructionKind::propose, program::InstructionKind::update}));
}

TEST(Profiler, OfStepsThatOverflowHasNoUpdates) {
  EXPECT_EQ(measure(config_that_overflows(), "dp=1", 0).update_seconds, 0);
  EXPECT_GT(measure(config_of(kMlp, {"precision.compute=FLOAT16"}), "dp=1", 0).update_seconds, 0);
}

TEST(Profiler, LeavesTheTrainingAsItIs) {
  const config::RunConfig config = config_of(kLenet);
  const Trace plain = trace_of(config, "dp=2");
  std::vector<double> losses;
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    Worker worker(with(config, "dp=2"), {.rank = rank, .world_size = 2});
    worker.connect(world);
    TrainerEvents events;
    events.on_step = [&](const StepRecord& record) {
      if (rank == 0) losses.push_back(record.loss);
    };
    Trainer trainer(worker, world, std::move(events),
                    {.output_directory = "", .observer = [](const run::KernelObservation&) {}});
    trainer.prepare();
    trainer.run();
  });
  EXPECT_EQ(losses, plain.losses);
}

}  // namespace
}  // namespace lockstep::train
