#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/index.h"
#include "base/shell_text.h"
#include "cli/chaos/chaos_job.h"
#include "cli/chaos/faults.h"
#include "cli/chaos/report.h"
#include "jobs/child_process.h"
#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::cli {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

config::RunConfig config_with(std::vector<std::string> overrides = {}) {
  return config::parse_run_config(R"(
model { mlp { image: [4, 4, 1] classes: 3 } }
data { synthetic { samples: 24 eval_samples: 6 classes: 3 } }
trainer { steps: 5 global_batch: 8 }
optimizer { learning_rate: 0.1 sgd {} }
)",
                                  "test", overrides);
}

ChaosSpace space() {
  const std::vector<ChaosSpace::Instructions> worker{{program::InstructionKind::load, 1},
                                                     {program::InstructionKind::backward, 3}};
  const std::vector<ChaosSpace::Instructions> server{{program::InstructionKind::add, 1},
                                                     {program::InstructionKind::update, 2}};
  return {.workers = 2,
          .instructions = {worker, worker, server},
          .steps = 40,
          .saved_steps = {10, 20, 30, 40},
          .evaluated_steps = {25}};
}

constexpr ChaosKind kAll[] = {ChaosKind::kill,   ChaosKind::stop,  ChaosKind::hang,
                              ChaosKind::delay,  ChaosKind::nan,   ChaosKind::flip,
                              ChaosKind::enospc, ChaosKind::error, ChaosKind::preempt};

TEST(ChaosFaults, AreDecidedBySeedAndRunAlone) {
  for (const auto kind : kAll)
    EXPECT_EQ(to_text(draw_fault(space(), kind, 7, 3)), to_text(draw_fault(space(), kind, 7, 3)));
  std::set<std::string> by_run, by_seed;
  for (uint32_t i = 0; i < 20; ++i) {
    by_run.insert(to_text(draw_fault(space(), ChaosKind::kill, 7, i)));
    by_seed.insert(to_text(draw_fault(space(), ChaosKind::kill, i, 3)));
  }
  EXPECT_GT(by_run.size(), 15u);
  EXPECT_GT(by_seed.size(), 15u);
}

TEST(ChaosFaults, AreAllThingsThatTrainUnderstandsAndThatCanComeAbout) {
  const ChaosSpace all = space();
  std::set<int> ranks;
  std::set<train::FaultPlace> places;
  std::set<int> numbers;  // of instructions among their kind
  for (const auto kind : kAll)
    for (uint32_t run = 0; run < 300; ++run) {
      const ChaosFault fault = draw_fault(space(), kind, 1, run);
      EXPECT_GE(fault.step, 1);
      EXPECT_LE(fault.step, kind == ChaosKind::preempt ? 39 : 40);
      EXPECT_EQ(fault.failpoint.has_value(), kind != ChaosKind::preempt);
      if (!fault.failpoint) continue;
      const train::Failpoint& failpoint = *fault.failpoint;
      EXPECT_EQ(train::parse_failpoint(train::to_text(failpoint)), failpoint);
      ranks.insert(failpoint.rank);
      places.insert(failpoint.place);
      const bool saved =
          failpoint.place == train::FaultPlace::write || failpoint.place == train::FaultPlace::save;
      if (saved) {
        EXPECT_EQ(failpoint.step % 10, 0) << train::to_text(failpoint);
      }
      if (failpoint.place == train::FaultPlace::evaluate) {
        EXPECT_EQ(failpoint.step, 25);
      }
      if (failpoint.place == train::FaultPlace::instruction && kind != ChaosKind::nan &&
          kind != ChaosKind::flip) {
        const auto& there = nth(all.instructions, failpoint.rank);
        const auto of_kind = std::ranges::find(there, failpoint.instruction, &ChaosSpace::Instructions::kind);
        ASSERT_NE(of_kind, there.end());
        EXPECT_LE(failpoint.number, of_kind->count);
        numbers.insert(failpoint.number);
      }
      if (kind == ChaosKind::nan || kind == ChaosKind::flip) {
        EXPECT_LT(failpoint.rank, 2) << "servers compute no activations";
      }
    }
  EXPECT_THAT(ranks, ElementsAre(0, 1, 2));
  EXPECT_THAT(numbers, ElementsAre(1, 2, 3));
  EXPECT_EQ(places.size(), 4u);  // all but start and begin
}

TEST(ChaosFaults, WhatARunDoesNotDoIsNotDisturbed) {
  ChaosSpace bare = space();
  bare.saved_steps = bare.evaluated_steps = {};
  for (uint32_t run = 0; run < 100; ++run)
    EXPECT_EQ(draw_fault(bare, ChaosKind::kill, 1, run).failpoint->place, train::FaultPlace::instruction);
  EXPECT_THROW(draw_fault(bare, ChaosKind::enospc, 1, 1), ConfigError);
}

TEST(ChaosFaults, KindsAreReadAndMistakesNamed) {
  const auto refusal = [](const std::string& list, const config::RunConfig& config) {
    try {
      parse_chaos_kinds(list, config, 2);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const config::RunConfig config = config_with(), careless = config_with({"trainer.nonfinite=IGNORE"});
  EXPECT_THAT(parse_chaos_kinds("stop, kill", config, 2), ElementsAre(ChaosKind::stop, ChaosKind::kill));
  EXPECT_EQ(parse_chaos_kinds("", config, 2).size(), 9u);
  EXPECT_THAT(parse_chaos_kinds("", config, 1), Not(Contains(ChaosKind::flip)));
  EXPECT_THROW(parse_chaos_kinds("flip", config, 1), ConfigError);
  EXPECT_THAT(parse_chaos_kinds("", careless, 2), Not(Contains(ChaosKind::nan)));
  EXPECT_THAT(refusal("kil", config), Mentions("'kil' ... did you mean 'kill'?"));
  EXPECT_THAT(refusal("kill,kill", config), HasSubstr("kill is named twice"));
  EXPECT_THAT(refusal("kill,nan", careless), HasSubstr("trainer.nonfinite"));
}

ChaosFault fault_of(ChaosKind kind, const std::string& failpoint) {
  ChaosFault fault{.kind = kind, .step = 20, .failpoint = {}};
  if (!failpoint.empty()) {
    fault.failpoint = train::parse_failpoint(failpoint);
    fault.step = fault.failpoint->step;
  }
  return fault;
}

/// Of a run of 40 steps.
std::vector<int> codes(ChaosKind kind, const std::string& failpoint,
                       const std::vector<std::string>& overrides = {}) {
  return expected_codes(fault_of(kind, failpoint), config_with(overrides), 40);
}

TEST(ChaosFaults, ExpectedCodesFollowTheConfigsPolicies) {
  EXPECT_THAT(codes(ChaosKind::kill, "kill@0,20,norm"), ElementsAre(137, 200));
  EXPECT_THAT(codes(ChaosKind::stop, "stop@0,20,norm"), ElementsAre(201));
  EXPECT_THAT(codes(ChaosKind::preempt, ""), ElementsAre(143, 0));
  EXPECT_THAT(codes(ChaosKind::nan, "nan@0,20"), ElementsAre(70));
  EXPECT_THAT(codes(ChaosKind::nan, "nan@0,20", {"trainer.nonfinite=SKIP"}), ElementsAre(0));
  EXPECT_THAT(codes(ChaosKind::enospc, "enospc@0,20,write:3"), ElementsAre(74));
  EXPECT_THAT(codes(ChaosKind::error, "error@0,20,norm"), ElementsAre(70));
  EXPECT_THAT(codes(ChaosKind::error, "error@0,20,write:3"), ElementsAre(70));
  const std::vector<std::string> go_on = {"checkpoint.on_failure=CONTINUE"};
  EXPECT_THAT(codes(ChaosKind::enospc, "enospc@0,20,write:3", go_on), ElementsAre(0));
  EXPECT_THAT(codes(ChaosKind::enospc, "enospc@0,40,write:3", go_on), ElementsAre(0, 74));
  EXPECT_THAT(codes(ChaosKind::error, "error@0,20,write:3", go_on), ElementsAre(0));
  EXPECT_THAT(codes(ChaosKind::error, "error@0,40,write:3", go_on), ElementsAre(0, 70));
  EXPECT_THAT(codes(ChaosKind::error, "error@0,20,norm", go_on), ElementsAre(70));
  EXPECT_THAT(codes(ChaosKind::error, "error@0,20,save", go_on), ElementsAre(70));
  const config::RunConfig skipping = config_with({"trainer.nonfinite=SKIP"});
  EXPECT_FALSE(keeps_bits(fault_of(ChaosKind::nan, "nan@0,20"), skipping));
  EXPECT_TRUE(keeps_bits(fault_of(ChaosKind::kill, "kill@0,20"), skipping));
}

TEST(ChaosFaults, ANanInGradientsOfAScaledLossPassesForAnOverflow) {
  const std::vector<std::string> half = {"precision.compute=FLOAT16"};
  for (const char* failpoint : {"nan@0,20", "nan@0,20,backward"}) {
    EXPECT_THAT(codes(ChaosKind::nan, failpoint, half), ElementsAre(0, 70));
    EXPECT_FALSE(keeps_bits(fault_of(ChaosKind::nan, failpoint), config_with(half)));
    EXPECT_TRUE(keeps_bits(fault_of(ChaosKind::nan, failpoint), config_with({"precision.compute=BFLOAT16"})));
  }
  EXPECT_THAT(codes(ChaosKind::nan, "nan@0,20,forward", half), ElementsAre(70));
  EXPECT_TRUE(keeps_bits(fault_of(ChaosKind::nan, "nan@0,20,forward"), config_with(half)));
  EXPECT_THAT(
      codes(ChaosKind::nan, "nan@0,20,backward", {"precision.compute=FLOAT16", "trainer.nonfinite=SKIP"}),
      ElementsAre(0));
}

ChaosResult result_of(int run, const std::string& failpoint, double detection) {
  ChaosResult result{
      .run = run,
      .fault = {.kind = ChaosKind::kill, .step = 3, .failpoint = train::parse_failpoint(failpoint)}};
  result.happened = result.detected = result.bits_equal = true;
  result.code = 137;
  result.detection_seconds = detection;
  result.recovery_seconds = 2 * detection;
  result.steps_lost = run;
  return result;
}

TEST(ChaosReport, MediansAndWorstCasesByKind) {
  ChaosReport report{.steps = 40};
  report.results = {result_of(1, "kill@0,3", 1.0), result_of(2, "kill@1,4", 4.0),
                    result_of(3, "kill@1,5", 2.0), result_of(4, "kill@1,6", 2.5)};
  EXPECT_TRUE(report.passed());
  const std::string json = to_json(report);
  EXPECT_THAT(json, HasSubstr(R"("detection_seconds_median":2.25,"detection_seconds_max":4.0)"));
  EXPECT_THAT(json, HasSubstr(R"("recovery_seconds_median":4.5,"steps_lost_max":4)"));
  EXPECT_THAT(describe(report), Mentions("4 runs ... 40 steps: every fault ... every run"));
}

TEST(ChaosReport, ClaimsNoMoreThanItHasSeen) {
  ChaosReport report{.steps = 40};
  report.results = {result_of(1, "nan@0,3", 1.0), result_of(2, "nan@1,4", 1.0), result_of(3, "nan@1,5", 1.0)};
  report.results[0].bits_equal = report.results[1].bits_equal = false;
  report.results[2].happened = false;
  EXPECT_TRUE(report.passed());
  EXPECT_THAT(describe(report), Mentions("3 runs ... 40 steps: ... 2 faults ... 1 of the runs ... skipped"));
  for (auto& result : report.results) result.happened = false;
  EXPECT_FALSE(report.passed());
  EXPECT_THAT(describe(report), HasSubstr("no fault"));
  EXPECT_THAT(describe(report), Not(HasSubstr("of the undisturbed")));
}

TEST(ChaosJob, TheCommandToDoItAgainReadsBackInAShellAndWritesElsewhere) {
  const ChaosJob job{
      .processes = 3, .arguments = {"it's $HOME", "a*b", ""}, .folder = "/tmp/my runs/run-001"};
  EXPECT_EQ(job.command_line({"--failpoint", "kill@1,4,norm"}),
            "mpirun -n 3 " + shell_word(jobs::own_program()) +
                R"( 'it'\''s $HOME' 'a*b' '' '--out=/tmp/my runs/run-001/again' --failpoint kill@1,4,norm)");
  EXPECT_EQ(job.run_directory(), "/tmp/my runs/run-001/run");
}

TEST(ChaosReport, WhatWentWrongIsListedWithTheWayToDoItAgain) {
  ChaosReport report{.steps = 40};
  report.results = {result_of(1, "kill@0,3", 1.0), result_of(2, "kill@1,4,norm", 4.0)};
  report.results[1].problems = {"2 processes outlived mpirun"};
  report.results[1].replay = "mpirun -n 2 lockstep train c.textproto --failpoint kill@1,4,norm";
  EXPECT_FALSE(report.passed());
  const std::string text = describe(report);
  EXPECT_THAT(text, Mentions("run 2, kill@1,4,norm: ... 137 ... 2 processes ... mpirun -n 2 lockstep"));
  EXPECT_THAT(text, HasSubstr("1 of 2 runs failed"));
  EXPECT_THAT(to_json(report), HasSubstr(R"("passed":false)"));
}

}  // namespace
}  // namespace lockstep::cli
