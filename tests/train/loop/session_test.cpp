// Workers that do not wait for each other: what can be said of them whoever comes first.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <random>
#include <thread>

#include "lockstep/error.h"
#include "mentions.h"
#include "proof/checker.h"
#include "train/loop/divided_models.h"
#include "train/session_ranks.h"
#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"
#include "train/worker/model_state.h"
#include "train/worker/worker_memory.h"

namespace lockstep::train {
namespace {

using ::testing::HasSubstr;

/// FAST, since numbers depend on who comes first; or, where nobody does, on nothing.
config::RunConfig fast(const char* model, std::vector<std::string> overrides = {}) {
  overrides.emplace_back("parallel.reduction=FAST");
  return config_of(model, overrides);
}

/// Each rank takes its time at some of its instructions.
auto jitter(unsigned seed) {
  return [seed](int rank, const program::Program&, uint64_t iteration, int instruction) {
    std::minstd_rand random(seed * 7919 + static_cast<unsigned>(rank) * 104729 +
                            static_cast<unsigned>(iteration) * 31 + static_cast<unsigned>(instruction));
    random.discard(3);
    if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
  };
}

const std::vector<std::string> kLayouts = {
    "dp=2,sync=ps,mode=stale",
    "dp=3,sync=ps,servers=2,mode=stale,bound=2",
    "dp=2,sync=ps,servers=3,mode=stale,bound=4",
    "dp=3,sync=ps,servers=2,assign=whole,mode=stale",
    "dp=2,sync=ps,placement=colocated,mode=stale",
    "dp=3,sync=ps,servers=3,placement=colocated,mode=stale,bound=2",
    "dp=2,sync=ps,mode=async",
    "dp=4,sync=ps,servers=2,mode=async",
    "dp=3,sync=ps,servers=2,assign=whole,mode=async",
    "dp=2,sync=ps,servers=2,placement=colocated,mode=async",
    "dp=3,sync=ps,placement=colocated,mode=async",
};

struct Case {
  const char* name;
  const char* model;
  std::vector<std::string> overrides;
};

class Sessions : public testing::TestWithParam<Case> {
 protected:
  config::RunConfig config(std::vector<std::string> more = {}) const {
    more.insert(more.end(), GetParam().overrides.begin(), GetParam().overrides.end());
    return fast(GetParam().model, std::move(more));
  }
};

TEST_P(Sessions, OfAWorkerWithoutOthersAreOrdinaryTraining) {
  const EndedRank plain = train_sessions(config(), "dp=1")[0];
  for (const char* layout : {"dp=1,sync=ps,mode=async", "dp=1,sync=ps,servers=2,mode=async",
                             "dp=1,sync=ps,placement=colocated,mode=async"}) {
    const EndedRank alone = train_sessions(config(), layout)[0];
    EXPECT_EQ(alone.parameters_hash, plain.parameters_hash) << layout;
    EXPECT_EQ(alone.state_hash, plain.state_hash) << layout;
    EXPECT_EQ(alone.outcome.evaluation->loss, plain.outcome.evaluation->loss) << layout;
    EXPECT_EQ(alone.outcome.staleness.max, 0) << layout;
    EXPECT_EQ(alone.outcome.sessions, 2) << layout << ": one up to the evaluation, one to the end";
    ASSERT_EQ(alone.records.size(), plain.records.size()) << layout;
    for (size_t i = 0; i < plain.records.size(); ++i) {
      EXPECT_NEAR(alone.records[i].loss, plain.records[i].loss, 1e-9) << layout;
      EXPECT_EQ(alone.records[i].learning_rate, plain.records[i].learning_rate) << layout;
    }
  }
}

TEST_P(Sessions, OfOneStepWaitForAll) {
  // All read what all have made: what a bound allows cannot be used.
  const auto one_step = config({"checkpoint.every_steps=1"});
  for (const std::string servers : {"servers=1", "servers=2", "servers=2,assign=whole"})
    for (const std::string dp : {"dp=2", "dp=3"}) {
      const EndedRank waiting = train_sessions(one_step, dp + ",sync=ps," + servers)[0];
      for (const std::string mode :
           {",mode=stale", ",mode=stale,bound=3", ",placement=colocated,mode=stale"}) {
        const std::string layout = dp + ",sync=ps," + servers + mode;
        const EndedRank ended = train_sessions(one_step, layout)[0];
        EXPECT_EQ(ended.outcome.sessions, 5) << layout;
        if (one_step.trainer.clip_norm > 0) continue;  // each push by itself
        EXPECT_NEAR(ended.records.back().loss, waiting.records.back().loss, 1e-4) << layout;
        if (GetParam().model == kGpt) continue;  // uses of tied parameters are added before, not after
        EXPECT_EQ(ended.parameters_hash, waiting.parameters_hash) << layout;
        EXPECT_EQ(ended.state_hash, waiting.state_hash) << layout;
        EXPECT_EQ(ended.records.back().loss, waiting.records.back().loss) << layout;
      }
    }
}

TEST_P(Sessions, MakeEveryStepOnceHoweverTheRanksTakeTheirTime) {
  for (const std::string& layout : kLayouts)
    for (const unsigned seed : {1u, 2u}) {
      const auto parsed = layout::parse_layout(layout);
      const auto ended =
          train_sessions(config(), layout, {.folder = {}, .stop_requested = {}, .before = jitter(seed)});
      const TrainingOutcome& outcome = ended[0].outcome;
      EXPECT_EQ(outcome.steps, 5) << layout;
      EXPECT_FALSE(outcome.stopped) << layout;
      EXPECT_EQ(ended[0].records.size(), 5u) << layout;
      EXPECT_TRUE(std::isfinite(outcome.evaluation->loss)) << layout;
      EXPECT_GT(outcome.staleness.count, 0) << layout;
      EXPECT_EQ(outcome.staleness.count % (5 * parsed.dp), 0)
          << layout << ": each worker's pushes of each range, or each push, once";
      EXPECT_LE(outcome.staleness.max, parsed.mode == layout::ServerMode::stale ? parsed.bound : 5 * 4)
          << layout;
    }
}

#ifndef __SANITIZE_THREAD__  // one thread
TEST_P(Sessions, AreProven) {
  for (const std::string& layout : kLayouts)
    compile_run(with(config(), layout), {.world_size = processes_of(layout)}).check();
}
#endif

/// What the checker finds in the programs of two workers and a server, of which one of the first worker's
/// pushes is changed.
std::string findings_with(const std::function<void(std::vector<program::Instruction*>&)>& change) {
  const config::RunConfig config = fast(kMlp, {"parallel.bucket_bytes=50000"});
  const compile::CompiledRun run = compile_run(with(config, "dp=2,sync=ps,mode=stale"), {.world_size = 3});
  std::vector<program::Program> programs;
  for (int rank = 0; rank < 3; ++rank)
    programs.push_back(rank < 2 ? run.compile(rank).step : run.compile(rank).serve);
  programs.back().name = programs.front().name;  // what meets the workers' steps
  std::vector<program::Instruction*> pushes;
  for (program::Instruction& i : programs[0].instructions)
    if (i.kind == program::InstructionKind::push) pushes.push_back(&i);
  change(pushes);
  std::string text;
  for (const auto& finding : proof::check_programs(programs)) text += finding.message + "\n";
  return text;
}

TEST(Session, IsProvenToScaleEveryPushByWhatItsStepComesTo) {
  const auto leave_out = [](program::Instruction& push, program::Role role, int index) {
    EXPECT_GT(std::erase_if(push.operands, [&](const auto& o) { return o.role == role && o.index == index; }),
              0U);
  };
  EXPECT_EQ(findings_with([](auto& pushes) { EXPECT_GE(pushes.size(), 2U); }), "");
  EXPECT_THAT(findings_with([&](auto& pushes) { leave_out(*pushes.back(), program::Role::verdict, 1); }),
              Mentions("rank 2 ... pushes"));
  EXPECT_THAT(findings_with([&](auto& pushes) { leave_out(*pushes.back(), program::Role::predicate, 0); }),
              Mentions("updates ... obey the same"));
  EXPECT_THAT(findings_with([](auto& pushes) {
                const auto& last = pushes.back()->operands;
                const auto agreed = std::ranges::find(last, program::Role::verdict, &program::Operand::role);
                pushes.front()->operands.push_back(*agreed);
              }),
              Mentions("updates ... obey the same"));
}

// Races depend on what is waited for and on how updates meet, not on layers: ThreadSanitizer, under which a
// training takes ten times as long, sees one model of each way to update.
const std::vector<Case> kCases = {
#ifndef __SANITIZE_THREAD__
    Case{"mlp", kMlp, {"trainer.clip_norm=0"}},
    Case{"mlp_momentum", kMlp, {"trainer.clip_norm=0", "optimizer.sgd={momentum: 0.9}"}},
    Case{"lenet", kLenet, {"trainer.clip_norm=0"}},
    Case{"gpt_bfloat16", kGpt, {"precision.compute=BFLOAT16"}},
#endif
    Case{"mlp_clipped", kMlp, {"parallel.bucket_bytes=50000"}},
    Case{"mlp_as_it_lands",
         kMlp,
         {"trainer.clip_norm=0", "trainer.nonfinite=IGNORE", "parallel.bucket_bytes=50000"}},
    Case{"gpt", kGpt, {"trainer.clip_norm=0"}},
};
INSTANTIATE_TEST_SUITE_P(All, Sessions, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(Session, WithoutABoundMovesAsFarAsAStepOfAllWorkers) {
  // Both workers read the first version; then each of their pushes is an update by the mean over its share,
  // with half of the learning rate.
  const std::vector<std::string> plain = {"optimizer.sgd={}",    "optimizer.weight_decay=0",
                                          "trainer.clip_norm=0", "trainer.steps=1",
                                          "model.mlp.dropout=0", "data.shuffle=false"};
  const Trace one = train_on_threads(fast(kMlp, plain), 1);
  for (const auto& [rate, expected] :
       {std::pair<std::string, double>("DIVIDED", 1), {"AS_STATED", 2}, {"DIVIDED_BY_ROOT", std::sqrt(2)}}) {
    std::vector<std::string> overrides = plain;
    overrides.push_back("parallel={sync: PS mode: ASYNC async_learning_rate: " + rate + "}");
    std::barrier<> both(2);
    std::vector<std::vector<float>> parameters;
    run_ranks(3, [&](int rank, comm::Communicator& world) {
      WorkerOptions options{.rank = rank, .world_size = 3, .asynchronous = {}};
      options.before_instruction = [&](const Worker&, const program::Program& program, uint64_t, int i) {
        if (program.name == "step" && program.instruction(i).kind == program::InstructionKind::load &&
            program.instruction(i).micro_batch == 0)
          both.arrive_and_wait();
      };
      Worker worker(fast(kMlp, overrides), options);
      worker.connect(world);
      Trainer trainer(worker, world, {}, {.output_directory = {}, .stop_requested = {}});
      trainer.prepare();
      trainer.run();
      for (const HeldParameter& held : worker.held_parameters())
        if (rank == 0) parameters.emplace_back(held.data, held.data + held.part.count());
    });
    // By how much the largest parameter tensor has moved, as a multiple of what one worker moves it by.
    const Trace start = train_on_threads(fast(kMlp,
                                              [&] {
                                                auto still = plain;
                                                still.emplace_back("optimizer.learning_rate=1e-30");
                                                return still;
                                              }()),
                                         1);
    double moved = 0, by_one = 0;
    for (size_t p = 0; p < parameters.size(); ++p)
      for (size_t i = 0; i < parameters[p].size(); ++i) {
        const double step = one.parameters[p][i] - start.parameters[p][i];
        moved += step * (parameters[p][i] - start.parameters[p][i]);
        by_one += step * step;
      }
    EXPECT_NEAR(moved / by_one, expected, 1e-3) << rate;
  }
}

TEST(Session, IsOverSoonWhereAnyRankIsAskedToStop) {
  const auto config =
      fast(kMlp, {"trainer.steps=200", "trainer.eval_every_steps=0", "trainer.eval_at_end=false"});
  std::vector<std::string> layouts = kLayouts;
  layouts.emplace_back("dp=2,sync=ps,mode=stale,bound=150");
  for (const std::string& layout : layouts) {
    const int ranks = processes_of(layout);
    for (const int asked : {0, ranks - 1}) {
      std::atomic<int> polls{0};
      const auto ended =
          train_sessions(config, layout,
                         {.folder = {},
                          .stop_requested = [&](int rank) { return rank == asked && ++polls > 8; },
                          .before = {}});
      EXPECT_TRUE(ended[0].outcome.stopped) << layout << ", rank " << asked;
      // A worker may be as many steps ahead of the one that is asked as the bound says.
      EXPECT_LT(ended[0].outcome.steps, 180) << layout;
      EXPECT_GT(ended[0].outcome.steps, 0) << layout;
      EXPECT_EQ(ended[0].outcome.staleness.count % layout::parse_layout(layout).dp, 0)
          << layout << ": whole steps";
    }
  }
}

TEST(Session, EndsAtTheStepThatWasAskedFor) {
  for (const std::string& layout : kLayouts) {
    const auto ended = train_sessions(fast(kMlp), layout,
                                      {.folder = {}, .stop_after = 4, .stop_requested = {}, .before = {}});
    EXPECT_EQ(ended[0].outcome.steps, 4) << layout;
    EXPECT_TRUE(ended[0].outcome.stopped) << layout;
  }
}

std::string folder_of(const std::string& name) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("sessions-" + name);
  std::filesystem::remove_all(folder);
  return folder.string();
}

TEST(Session, GoesOnFromCheckpointsOfOtherModesAndBack) {
  const std::vector<std::string> saving = {
      "checkpoint={every_steps: 2 background: false resume_automatic: true}"};
  const auto config = fast(kGpt, saving);
  int number = 0;
  for (const auto& [first, second] :
       {std::pair{"dp=2,sync=ps,mode=stale", "dp=3"}, std::pair{"dp=2", "dp=2,sync=ps,servers=3,mode=async"},
        std::pair{"dp=3,sync=ps,servers=2,mode=async", "dp=2,sync=ps,placement=colocated,mode=stale"},
        std::pair{"dp=3,sync=ps,servers=3,placement=colocated,mode=async", "dp=2,sync=ps"}}) {
    const std::string folder = folder_of(std::to_string(number++));
    train_sessions(config, first, {.folder = folder, .stop_after = 2, .stop_requested = {}, .before = {}});
    const auto rest = train_sessions(config, second, {.folder = folder, .stop_requested = {}, .before = {}});
    EXPECT_EQ(rest[0].outcome.first_step, 2) << first;
    EXPECT_EQ(rest[0].outcome.steps, 5) << first;
    EXPECT_EQ(rest[0].records.size(), 3u) << first << ", then " << second;
  }
}

TEST(Session, OfAWorkerWithoutOthersGoesOnToTheSameBits) {
  const auto config = fast(kGpt, {"checkpoint={every_steps: 2 background: false resume_automatic: true}"});
  const char* layout = "dp=1,sync=ps,mode=async";
  const auto whole =
      train_sessions(config, layout, {.folder = folder_of("whole"), .stop_requested = {}, .before = {}});
  const std::string folder = folder_of("parts");
  train_sessions(config, layout, {.folder = folder, .stop_after = 3, .stop_requested = {}, .before = {}});
  const auto rest = train_sessions(config, layout, {.folder = folder, .stop_requested = {}, .before = {}});
  EXPECT_EQ(rest[0].state_hash, whole[0].state_hash);
}

TEST(Session, CountsTheBytesThatProgramsSayBesideItsMessages) {
  const std::string layout = "dp=2,sync=ps,servers=2,mode=stale";
  const auto config = with(fast(kGpt), layout);
  const auto ended = train_sessions(config, layout);
  const auto run = compile_run(config, {.world_size = 4});
  for (int rank = 0; rank < 4; ++rank) {
    const auto theory = run.compile(rank).traffic();
    const auto near = [&](int64_t counted, int64_t expected) {
      EXPECT_GE(counted, 5 * expected) << rank;
      EXPECT_LE(static_cast<double>(counted), 5.02 * static_cast<double>(expected)) << rank;
      EXPECT_GT(expected, 0);
    };
    near(nth(ended, rank).transferred.sent, theory.exchanged_sent_bytes);
    near(nth(ended, rank).transferred.received, theory.exchanged_received_bytes);
  }
}

std::string error_of(const config::RunConfig& config, const std::string& layout) {
  try {
    train_sessions(config, layout);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(Session, OfStepsThatAreNotFiniteEndsOrSkipsThem) {
  std::vector<std::string> diverging = {"optimizer.sgd={}",           "optimizer.learning_rate=1e30",
                                        "trainer.clip_norm=0",        "optimizer.weight_decay=0",
                                        "trainer.eval_every_steps=0", "trainer.eval_at_end=false"};
  for (const std::string layout : {"dp=2,sync=ps,mode=stale", "dp=2,sync=ps,mode=async"}) {
    const std::string located = error_of(fast(kMlp, diverging), layout);
    EXPECT_THAT(located, Mentions("share of the batch ... finite ... push"));
    EXPECT_THAT(located, Mentions("first: ... gradient of parameter"));
    auto skipping = diverging;
    skipping.insert(skipping.end(), {"trainer.nonfinite=SKIP", "trainer.nonfinite_limit=1000"});
    const auto ended = train_sessions(fast(kMlp, skipping), layout);
    EXPECT_GT(ended[0].outcome.skipped_steps, 0) << layout;
    EXPECT_EQ(ended[0].outcome.steps, 5) << layout;
    skipping.back() = "trainer.nonfinite_limit=1";
    EXPECT_THAT(error_of(fast(kMlp, skipping), layout), HasSubstr("trainer.nonfinite_limit is 1")) << layout;
  }
}

TEST(Session, OfAWorkerWithoutOthersSkipsStepsAsOrdinaryTrainingDoes) {
  const auto config = fast(kMlp, {"trainer.nonfinite=SKIP", "trainer.clip_norm=0",
                                  "checkpoint={every_steps: 2 background: false resume_automatic: true}"});
  const auto run = [&](const std::string& layout) {
    const std::string folder = folder_of("skips");
    const SessionRanksOptions first{
        .folder = folder, .stop_after = 3, .stop_requested = {}, .before = {}, .spoiled = {0, 1}};
    EXPECT_EQ(train_sessions(config, layout, first)[0].outcome.skipped_steps, 2) << layout;
    return train_sessions(config, layout, {.folder = folder, .stop_requested = {}, .before = {}})[0];
  };
  const EndedRank plain = run("dp=1");
  const EndedRank alone = run("dp=1,sync=ps,mode=async");
  EXPECT_EQ(alone.state_hash, plain.state_hash) << "the optimizer counts what its state has seen";
}

TEST(Session, WithWhatIsNotFiniteGoesOnWithFiniteMeans) {
  const auto config =
      fast(kMlp, {"trainer.nonfinite=SKIP", "trainer.steps=12", "trainer.eval_every_steps=0"});
  for (const std::string layout : {"dp=2,sync=ps,mode=stale", "dp=2,sync=ps,mode=async"}) {
    const auto ended =
        train_sessions(config, layout, {.folder = {}, .stop_requested = {}, .before = {}, .spoiled = {1}});
    EXPECT_GT(ended[0].outcome.skipped_steps, 0) << layout;
    EXPECT_TRUE(std::isfinite(ended[0].records.back().loss)) << layout;
    EXPECT_TRUE(std::isfinite(ended[0].records.back().gradient_norm)) << layout;
  }
  const auto ignoring = fast(kMlp, {"trainer.nonfinite=IGNORE", "trainer.nonfinite_limit=1"});
  const auto ended = train_sessions(ignoring, "dp=2,sync=ps,mode=stale",
                                    {.folder = {}, .stop_requested = {}, .before = {}, .spoiled = {4}});
  EXPECT_EQ(ended[0].outcome.skipped_steps, 0) << "nobody looks";
}

TEST(Session, EndsSoonAfterTooManySkips) {
  const auto config = fast(kMlp, {"trainer.nonfinite=SKIP", "trainer.nonfinite_limit=4", "trainer.steps=400",
                                  "optimizer.sgd={}", "optimizer.learning_rate=1e30", "trainer.clip_norm=0",
                                  "optimizer.weight_decay=0", "trainer.eval_every_steps=0"});
  for (const std::string layout : {"dp=2,sync=ps,mode=stale", "dp=2,sync=ps,mode=async"}) {
    const std::string error = error_of(config, layout);
    EXPECT_THAT(error, HasSubstr("trainer.nonfinite_limit is 4")) << layout;
    // Who hears of another rank's end first says whose.
    const size_t end = error.find(" updates were skipped"), begin = error.rfind(' ', end - 1);
    const int64_t skipped =
        std::strtoll(error.c_str() + (begin == std::string::npos ? 0 : begin + 1), nullptr, 10);
    EXPECT_GE(skipped, 4) << error;
    EXPECT_LE(skipped, 40) << error;
  }
}

TEST(Session, WithABoundOfZeroIsTheProgramOfServersThatWaitForAll) {
  const config::RunConfig config = config_of(kMlp);
  const auto zero = compile_run(with(config, "dp=2,sync=ps,servers=2,mode=stale,bound=0"), {.world_size = 4});
  const auto sync = compile_run(with(config, "dp=2,sync=ps,servers=2"), {.world_size = 4});
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(zero.compile(rank).step, sync.compile(rank).step);
    EXPECT_TRUE(zero.compile(rank).serve.instructions.empty());
  }
}

TEST(Session, WithMorePushesThanWorkersMakesAsManyOfEachStep) {
  // Of one worker: what smaller batches would make. Sums are weighted by powers of two, which round nothing.
  const auto config = [](int batch, int steps) {
    return fast(kMlp, {fmt::format("trainer.global_batch={}", batch), fmt::format("trainer.steps={}", steps),
                       "parallel.sync=PS", "parallel.mode=ASYNC", "parallel.async_learning_rate=AS_STATED",
                       "trainer.eval_every_steps=0"});
  };
  const EndedRank sixteen = train_sessions(config(16, 6), "dp=1,sync=ps,mode=async,pushes=4")[0];
  const EndedRank four = train_sessions(config(4, 24), "dp=1,sync=ps,mode=async")[0];
  EXPECT_EQ(sixteen.state_hash, four.state_hash);
  EXPECT_EQ(sixteen.outcome.steps, 6);
  const auto shared = train_sessions(config(12, 8), "dp=2,sync=ps,servers=2,mode=async,pushes=3");
  EXPECT_EQ(shared[0].outcome.steps, 8);
  EXPECT_EQ(shared[0].outcome.staleness.count % 24, 0) << "each range of the first server";
}

TEST(Session, IsRefusedWhereLanesHaveThreadsOfTheirOwn) {
  run_ranks(2, [](int rank, comm::Communicator& world) {
    Worker worker(with(fast(kMlp), "dp=1,sync=ps,mode=async"),
                  {.rank = rank, .world_size = 2, .asynchronous = device::AsyncCpuOptions{}});
    try {
      worker.connect(world);
      ADD_FAILURE() << "accepted";
    } catch (const InternalError& error) {
      EXPECT_THAT(error.what(), HasSubstr("sessions with servers"));
    }
  });
}

}  // namespace
}  // namespace lockstep::train
