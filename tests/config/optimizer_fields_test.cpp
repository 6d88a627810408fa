#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_testing.h"
#include "mentions.h"
#include "model/graph.h"

// Schedules, groups of parameters, moving averages, frozen layers.

namespace lockstep::config {
namespace {

optim::ScheduleOptions schedule_of(const std::string& kind) {
  return parse(kSmallConfig, {"optimizer.schedule={" + kind + "}"}).schedule;
}

TEST(Schedule, IsReadAsItStands) {
  using optim::ScheduleKind;
  EXPECT_EQ(schedule_of("step: {gamma: 0.5 milestones: [30, 60.5] unit: EPOCHS}"),
            (optim::ScheduleOptions{.kind = ScheduleKind::step,
                                    .gamma = 0.5,
                                    .milestones = {30, 60.5},
                                    .unit = optim::ScheduleUnit::epochs}));
  EXPECT_EQ(schedule_of("warmup_steps: 2 step: {every: 100}"),
            (optim::ScheduleOptions{.kind = ScheduleKind::step, .warmup_steps = 2, .every = 100}));
  EXPECT_EQ(schedule_of("linear: {minimum: 0.01}"),
            (optim::ScheduleOptions{.kind = ScheduleKind::linear, .minimum = 0.01}));
  EXPECT_EQ(schedule_of("polynomial: {power: 2 minimum: 0.01}"),
            (optim::ScheduleOptions{.kind = ScheduleKind::polynomial, .minimum = 0.01, .power = 2}));
  EXPECT_EQ(schedule_of("one_cycle: {three_phase: true}"),
            (optim::ScheduleOptions{.kind = ScheduleKind::one_cycle,
                                    .interpolation = optim::Interpolation::cosine,
                                    .three_phase = true}));
  EXPECT_EQ(schedule_of("warmup_steps: 3 stable_decay: {decay_share: 0.2 shape: ONE_MINUS_SQRT}"),
            (optim::ScheduleOptions{.kind = ScheduleKind::stable_decay,
                                    .warmup_steps = 3,
                                    .decay_share = 0.2,
                                    .shape = optim::DecayShape::one_minus_sqrt}));
  EXPECT_EQ(
      schedule_of(
          "points: {point: {at: 0 factor: 0.1} point: {at: 0.5 factor: 1} unit: SHARE interpolation: HOLD}"),
      (optim::ScheduleOptions{.kind = ScheduleKind::points,
                              .unit = optim::ScheduleUnit::share,
                              .points = {{0, 0.1}, {0.5, 1}},
                              .interpolation = optim::Interpolation::hold}));
}

TEST(Schedule, ThatContradictsItselfIsRefused) {
  const auto refusal_of = [](const std::string& kind) {
    return refusal(kSmallConfig, {"optimizer.schedule={" + kind + "}"});
  };
  const std::string path = "optimizer.schedule.";
  EXPECT_THAT(refusal_of("step: {}"), Mentions(path + "step: ... every ... milestones"));
  EXPECT_THAT(refusal_of("step: {every: 2 milestones: [3]}"),
              Mentions(path + "step: ... every and milestones"));
  EXPECT_THAT(refusal_of("step: {milestones: [3, 3]}"), Mentions(path + "step.milestones[1]: ... 3 ... 3"));
  EXPECT_THAT(refusal_of("step: {milestones: [0.5, 2] unit: SHARE}"),
              Mentions(path + "step.milestones[1]: ... 2"));
  EXPECT_THAT(refusal_of("step: {every: 2 gamma: 0}"), Mentions(path + "step.gamma: expected"));
  EXPECT_THAT(refusal_of("linear: {minimum: 0.2}"), Mentions(path + "linear.minimum: ... 0.2 ... 0.1"));
  EXPECT_THAT(refusal_of("polynomial: {minimum: 0.2}"), Mentions(path + "polynomial.minimum: ... 0.2"));
  EXPECT_THAT(refusal_of("stable_decay: {minimum: 0.2}"), Mentions(path + "stable_decay.minimum: ... 0.2"));
  EXPECT_THAT(refusal_of("one_cycle: {anneal: HOLD}"),
              Mentions("schedule.one_cycle.anneal: ... LINEAR, COSINE ... HOLD"));
  EXPECT_THAT(refusal_of("points: {point: {at: 0 factor: 0} interpolation: EXPONENTIAL}"),
              Mentions(path + "points.point[0].factor: ... 0 ... EXPONENTIAL"));
  EXPECT_THAT(refusal_of("one_cycle: {three_phase: true pct_start: 0.6}"),
              Mentions(path + "one_cycle.pct_start: ... 0.6 ... three_phase"));
  EXPECT_THAT(refusal_of("warmup_steps: 1 one_cycle: {}"), Mentions(path + "warmup_steps: one_cycle"));
  EXPECT_THAT(refusal_of("warmup_steps: 1 points: {point: {at: 0 factor: 1}}"),
              Mentions(path + "warmup_steps: points"));
  EXPECT_THAT(refusal_of("points: {}"), Mentions(path + "points"));
  EXPECT_THAT(refusal_of("points: {point: {at: 2 factor: 1} point: {at: 1 factor: 1}}"),
              Mentions(path + "points.point[1].at: ... 1 ... 2"));
  EXPECT_THAT(refusal_of("points: {point: {at: 2 factor: 1} unit: SHARE}"),
              Mentions(path + "points.point[0].at: ... 2"));
}

RunConfig scaled(const std::string& scaling, int64_t global_batch, std::vector<std::string> more = {}) {
  more.push_back("optimizer.scale_with_batch={" + scaling + "}");
  more.push_back("trainer.global_batch=" + std::to_string(global_batch));
  return parse(kSmallConfig, more);
}

RunConfig config_with(double rate, int64_t global_batch) {
  return parse(kSmallConfig, {"optimizer.learning_rate=" + std::to_string(rate),
                              "trainer.global_batch=" + std::to_string(global_batch)});
}

TEST(BatchScaling, DecidesTheRateAndWhereItBegins) {
  RunConfig run = scaled("from: 16 rule: LINEAR warmup_epochs: 5", 64);
  EXPECT_DOUBLE_EQ(run.optimizer.learning_rate, 0.4);
  EXPECT_EQ(run.schedule, (optim::ScheduleOptions{.warmup_epochs = 5, .warmup_from = 0.1}));
  run = scaled("from: 16 rule: SQUARE_ROOT warmup_steps: 7", 64);
  EXPECT_DOUBLE_EQ(run.optimizer.learning_rate, 0.2);
  EXPECT_EQ(run.schedule, (optim::ScheduleOptions{.warmup_steps = 7, .warmup_from = 0.1}));
  // A smaller batch needs no warm-up.
  run = scaled("from: 16 rule: LINEAR warmup_steps: 7", 8);
  EXPECT_DOUBLE_EQ(run.optimizer.learning_rate, 0.05);
  EXPECT_EQ(run.schedule, optim::ScheduleOptions{});
  EXPECT_THAT(describe_batch_scaling(run), Mentions("0.05 ... 0.1 ... 16 ... 8 / 16"));
  EXPECT_EQ(describe_batch_scaling(config_with(0.1, 8)), "");
}

TEST(BatchScaling, IsMathematicsAsTheRateThatFollows) {
  EXPECT_EQ(scaled("from: 16 rule: LINEAR", 32).math_hash, config_with(0.2, 32).math_hash);
  EXPECT_EQ(scaled("from: 16 rule: LINEAR warmup_steps: 7", 16).math_hash, config_with(0.1, 16).math_hash);
  EXPECT_EQ(scaled("from: 16 rule: LINEAR", 16).math_hash,
            scaled("from: 16 rule: SQUARE_ROOT", 16).math_hash);
  const uint64_t warm = scaled("from: 16 rule: LINEAR warmup_steps: 7", 32).math_hash;
  EXPECT_NE(warm, config_with(0.2, 32).math_hash);
  EXPECT_NE(warm, scaled("from: 16 rule: LINEAR warmup_steps: 8", 32).math_hash);
  EXPECT_NE(warm, scaled("from: 16 rule: LINEAR warmup_epochs: 7", 32).math_hash);
  EXPECT_NE(scaled("from: 16 rule: LINEAR", 32).config_hash, config_with(0.2, 32).config_hash);
}

TEST(BatchScaling, ReadsBackFromTheEffectiveConfig) {
  const RunConfig run = scaled("from: 16 rule: SQUARE_ROOT warmup_epochs: 0.5", 64);
  const RunConfig again = parse(run.effective_text);
  EXPECT_EQ(again.config_hash, run.config_hash);
  EXPECT_EQ(again.optimizer, run.optimizer);
  EXPECT_EQ(again.schedule, run.schedule);
}

TEST(BatchScaling, ThatContradictsItselfIsRefused) {
  const auto refusal_of = [](const std::string& scaling, const std::string& other = "trainer.seed=1") {
    return refusal(kSmallConfig, {"optimizer.scale_with_batch={" + scaling + "}", other});
  };
  const std::string path = "optimizer.scale_with_batch";
  EXPECT_THAT(refusal_of("rule: LINEAR"), Mentions(path + ".from"));
  EXPECT_THAT(refusal_of("from: 16"), Mentions(path + ".rule ... LINEAR"));
  EXPECT_THAT(refusal_of("from: 0 rule: LINEAR"), Mentions(path + ".from: expected"));
  EXPECT_THAT(refusal_of("from: 16 rule: LINEAR warmup_epochs: 0"),
              Mentions(path + ".warmup_epochs: expected"));
  EXPECT_THAT(refusal_of("from: 16 rule: LINEAR warmup_steps: 5", "optimizer.schedule={warmup_steps: 3}"),
              Mentions(path + ".warmup_steps: ... schedule.warmup_steps"));
  EXPECT_THAT(refusal_of("from: 16 rule: LINEAR warmup_epochs: 5", "optimizer.schedule={one_cycle {}}"),
              Mentions(path + ".warmup_epochs: one_cycle"));
  // What falls to a minimum falls from the scaled rate.
  EXPECT_THAT(refusal_of("from: 1024 rule: LINEAR", "optimizer.schedule={cosine {minimum: 0.01}}"),
              Mentions("optimizer.schedule.cosine.minimum: ... 0.01 ... scale_with_batch"));
}

TEST(LayerwiseOptimizers, HaveTheirPapersDefaults) {
  const RunConfig lars = parse(kSmallConfig, {"optimizer.lars={}"});
  EXPECT_EQ(lars.optimizer.kind, optim::OptimizerKind::lars);
  EXPECT_EQ(lars.optimizer.momentum, 0.9);
  EXPECT_EQ(lars.optimizer.trust, 0.001);
  EXPECT_EQ(lars.optimizer.epsilon, 0);
  const RunConfig lamb = parse(kSmallConfig, {"optimizer.lamb={beta2: 0.99}", "optimizer.weight_decay=0.01"});
  EXPECT_EQ(lamb.optimizer.kind, optim::OptimizerKind::lamb);
  EXPECT_EQ(lamb.optimizer.beta1, 0.9);
  EXPECT_EQ(lamb.optimizer.beta2, 0.99);
  EXPECT_EQ(lamb.optimizer.epsilon, 1e-6);
  EXPECT_FALSE(lamb.optimizer.adapts_without_decay);
  const RunConfig clipped = parse(kSmallConfig, {"optimizer.adaptive_clip={}"});
  EXPECT_EQ(clipped.optimizer.adaptive_clip.limit, 0.01);
  EXPECT_EQ(clipped.optimizer.adaptive_clip.floor, 0.001);
  EXPECT_EQ(parse(kSmallConfig).optimizer.adaptive_clip.limit, 0);
}

TEST(LayerwiseOptimizers, ThatContradictThemselvesAreRefused) {
  EXPECT_THAT(refusal(kSmallConfig, {"optimizer.lamb={}"}),
              Mentions("optimizer.lamb: ... optimizer.weight_decay ... adapt_without_decay"));
  EXPECT_EQ(
      parse(kSmallConfig, {"optimizer.lamb={adapt_without_decay: true}"}).optimizer.adapts_without_decay,
      true);
  // A group that decays is reason enough.
  parse(kSmallConfig,
        {"optimizer.lamb={}", "optimizer.groups={parameters: \"fc1.weight\" weight_decay: 0.1}"});
  const std::string all = "optimizer.groups={parameters: \"*\" ";
  EXPECT_THAT(
      refusal(kSmallConfig, {"optimizer.lamb={}", "optimizer.weight_decay=0.1", all + "weight_decay: 0}"}),
      Mentions("optimizer.lamb: ... weight_decay"));
  EXPECT_THAT(refusal(kSmallConfig,
                      {"optimizer.lamb={}", "optimizer.groups={parameters: \"*.bias\" weight_decay: 0.1}"}),
              Mentions("optimizer.lamb: ... weight_decay"));
  EXPECT_THAT(refusal(kSmallConfig, {"optimizer.adaptive_clip={}", all + "adaptive_clip: false}"}),
              Mentions("optimizer.adaptive_clip: ... optimizer.groups"));
  EXPECT_THAT(refusal(kSmallConfig, {"optimizer.lars={}", "optimizer.adaptive_clip={}"}),
              Mentions("optimizer.adaptive_clip: ... lars"));
  EXPECT_THAT(refusal(kSmallConfig, {"optimizer.groups={parameters: \"fc1.weight\" adaptive_clip: false}"}),
              Mentions("optimizer.groups[0].adaptive_clip: ... optimizer.adaptive_clip"));
  EXPECT_THAT(refusal(kSmallConfig, {"optimizer.lars={trust: 0}"}),
              Mentions("optimizer.lars.trust: expected"));
}

TEST(LayerwiseOptimizers, LeaveGroupsOfOlderRunsAsTheyAre) {
  const std::string group = "parameters: \"fc1.weight\" weight_decay: 0.1";
  const auto fields_of = [](const std::string& text) {
    return parse(kSmallConfig, {"optimizer.adaptive_clip={}", "optimizer.groups={" + text + "}"}).math_fields;
  };
  EXPECT_EQ(fields_of(group), fields_of(group + " adaptive_clip: true"));
  EXPECT_NE(fields_of(group), fields_of(group + " adaptive_clip: false"));
  for (const auto& [path, value] : fields_of(group)) EXPECT_NE(path, "optimizer.groups[0].adaptive_clip");
}

/// Layers with weights before and behind a hidden one.
constexpr const char* kThreeLayers = R"(
format_version: 1
trainer { steps: 3 global_batch: 16 seed: 1 }
model { mlp { image: 4 image: 4 image: 1 hidden: 6 hidden: 5 classes: 3 } }
data { synthetic { samples: 64 eval_samples: 32 classes: 3 shape: 4 shape: 4 shape: 1 } }
optimizer { learning_rate: 0.02 weight_decay: 0.1 muon { adamw { learning_rate: 0.005 } } }
)";

TEST(Muon, UpdatesHiddenMatricesAndAdamwTheRest) {
  const RunConfig run = parse(kThreeLayers);
  EXPECT_EQ(run.optimizer.kind, optim::OptimizerKind::muon);
  EXPECT_EQ(run.optimizer.learning_rate, 0.02);
  EXPECT_EQ(run.optimizer.momentum, 0.95);
  EXPECT_TRUE(run.optimizer.nesterov);
  EXPECT_EQ(run.optimizer.newton_schulz_steps, 5);
  EXPECT_EQ(run.optimizer.matrix_scale, optim::MatrixScale::spectral);
  EXPECT_EQ(run.optimizer.beta1, 0.9);
  EXPECT_EQ(run.optimizer.beta2, 0.95);
  // AdamW's rate is a quarter of the schedule's, which is Muon's.
  EXPECT_EQ(run.group_rates, (optim::GroupRates{{"fc1.weight", {0.1, 0.25}},
                                                {"fc1.bias", {0, 0.25}},
                                                {"fc2.weight", {0.1, 1, true, 0, {5, 6}}},
                                                {"fc2.bias", {0, 0.25}},
                                                {"fc3.weight", {0.1, 0.25}},
                                                {"fc3.bias", {0, 0.25}}}));
}

TEST(Muon, LetsGroupsSayOtherwise) {
  const RunConfig run = parse(
      kThreeLayers, {"optimizer.muon={scale: MATCH_ADAMW adamw: {learning_rate: 0.04 weight_decay: 0.3}}",
                     "optimizer.groups=[{parameters: \"fc1.weight\" muon: true learning_rate_factor: 0.5}, "
                     "{parameters: \"fc2.*\" muon: false}, "
                     "{parameters: \"fc3.weight\" weight_decay: 0}]"});
  EXPECT_EQ(run.optimizer.matrix_scale, optim::MatrixScale::match_adamw);
  EXPECT_EQ(run.group_rates, (optim::GroupRates{{"fc1.weight", {0.1, 0.5, true, 0, {6, 16}}},
                                                {"fc1.bias", {0, 2}},
                                                {"fc2.weight", {0.3, 2}},
                                                {"fc2.bias", {0, 2}},
                                                {"fc3.weight", {0, 2}},
                                                {"fc3.bias", {0, 2}}}));
  const RunConfig again = parse(run.effective_text);
  EXPECT_EQ(again.group_rates, run.group_rates);
  EXPECT_EQ(again.math_hash, run.math_hash);
  EXPECT_NE(parse(kThreeLayers).math_hash, run.math_hash);
}

/// AdamW's rate follows the batch, too, so a hash must not take it as it is stated.
TEST(Muon, HasTheMathematicsOfBothRatesThatFollowTheBatch) {
  const auto muon = [](const char* rate, const char* of_adamw, std::vector<std::string> more = {}) {
    more.push_back(std::string("optimizer.learning_rate=") + rate);
    more.push_back(std::string("optimizer.muon={adamw: {learning_rate: ") + of_adamw + "}}");
    return parse(kThreeLayers, more);
  };
  const RunConfig scaled = muon("0.02", "0.005", {"optimizer.scale_with_batch={from: 8 rule: LINEAR}"});
  const RunConfig stated = muon("0.04", "0.01");
  EXPECT_EQ(scaled.optimizer.learning_rate, stated.optimizer.learning_rate);
  EXPECT_EQ(scaled.group_rates, stated.group_rates);
  EXPECT_EQ(scaled.math_hash, stated.math_hash);
  EXPECT_NE(scaled.math_hash, muon("0.04", "0.005").math_hash) << "another rate of AdamW";
}

TEST(Muon, ThatContradictsItselfIsRefused) {
  EXPECT_THAT(refusal(kThreeLayers, {"optimizer.muon={}"}), Mentions("optimizer.muon.adamw"));
  EXPECT_THAT(refusal(kThreeLayers, {"optimizer.muon={adamw: {}}"}),
              Mentions("optimizer.muon.adamw.learning_rate"));
  EXPECT_THAT(refusal(kThreeLayers, {"optimizer.muon={momentum: 1 adamw: {learning_rate: 1}}"}),
              Mentions("optimizer.muon.momentum: expected"));
  EXPECT_THAT(refusal(kThreeLayers, {"optimizer.adaptive_clip={}"}),
              Mentions("optimizer.adaptive_clip: ... muon"));
  EXPECT_THAT(refusal(kThreeLayers, {"model.frozen=[\"fc2\"]"}), Mentions("optimizer.muon: ... no matrix"));
  EXPECT_THAT(refusal(kThreeLayers, {"optimizer.groups={parameters: \"fc1.*\" muon: true}"}),
              Mentions("optimizer.groups[0].muon: ... 'fc1.bias'"));
  EXPECT_THAT(refusal(kSmallConfig, {"optimizer.groups={parameters: \"fc1.weight\" muon: false}"}),
              Mentions("optimizer.groups[0].muon: ... optimizer.muon"));
  EXPECT_THAT(refusal(kSmallGpt, {"optimizer.muon={adamw: {learning_rate: 1}}",
                                  "optimizer.groups={parameters: \"wte.weight\" muon: true}"}),
              Mentions("optimizer.groups[0].muon: ... 'wte.weight'"));
  EXPECT_THAT(refusal(kThreeLayers, {"parallel.sync=PS", "parallel.servers=2"}),
              Mentions("parallel.assign ... assign=whole"));
}

TEST(Groups, TheFirstThatMatchesCounts) {
  const RunConfig run =
      parse(kSmallConfig, {"optimizer.weight_decay=0.1",
                           "optimizer.groups=[{parameters: \"fc1.*\" learning_rate_factor: 0.5}, "
                           "{parameters: [\"*.bias\", \"fc?.weight\"] weight_decay: 0.2}]"});
  // Biases do not decay unless a group says so.
  EXPECT_EQ(run.group_rates, (optim::GroupRates{{"fc1.weight", {0.1, 0.5}},
                                                {"fc1.bias", {0, 0.5}},
                                                {"fc2.weight", {0.2, 1}},
                                                {"fc2.bias", {0.2, 1}}}));
  EXPECT_TRUE(parse(kSmallConfig).group_rates.empty());
}

TEST(Groups, PatternsWithoutAParameterAreRefusedWithTheNearestName) {
  const auto refusal_of = [](const std::string& groups) {
    return refusal(kSmallConfig, {"optimizer.groups={" + groups + "}"});
  };
  EXPECT_THAT(refusal_of("parameters: \"fc1.wieght\" weight_decay: 0"),
              Mentions("optimizer.groups[0].parameters[0]: 'fc1.wieght' ... 'fc1.weight'"));
  EXPECT_THAT(refusal_of("parameters: [\"fc1.*\", \"h.*\"] weight_decay: 0"),
              Mentions("optimizer.groups[0].parameters[1]: 'h.*' ... fc1.weight, fc1.bias, fc2.weight"));
  EXPECT_THAT(refusal_of("weight_decay: 0"), Mentions("optimizer.groups[0].parameters"));
  EXPECT_THAT(refusal_of("parameters: \"*\" learning_rate_factor: 0"),
              Mentions("learning_rate_factor: expected"));
  EXPECT_THAT(refusal(kSmallConfig, {"optimizer.groups=[{parameters: \"*\" weight_decay: 0}, {parameters: "
                                     "\"fc1.*\" weight_decay: 1}]"}),
              Mentions("optimizer.groups[1]: ... ignored"));
  EXPECT_THAT(refusal(kSmallConfig,
                      {"model.frozen=[\"fc1\"]", "optimizer.groups={parameters: \"fc1.*\" weight_decay: 0}"}),
              Mentions("optimizer.groups[0].parameters[0]: 'fc1.*' ... 'fc1.weight' (model.frozen)"));
  EXPECT_THAT(refusal(kSmallConfig, {"model.lenet={image: [16, 16, 1] classes: 3 batch_norm: true}",
                                     "optimizer.groups={parameters: \"*.running_mean\" weight_decay: 0}"}),
              Mentions("optimizer.groups[0].parameters[0]: ... 'bn1.running_mean' (a running statistic)"));
}

TEST(Groups, ASharedParameterIsInOne) {
  const std::string by_other_name = "{parameters: \"lm_head.weight\" learning_rate_factor: 0.5}";
  EXPECT_EQ(parse(kSmallGpt, {"optimizer.groups=" + by_other_name}).group_rates,
            (optim::GroupRates{{"wte.weight", {.learning_rate_factor = 0.5}}}));
  EXPECT_THAT(refusal(kSmallGpt,
                      {"optimizer.groups=[" + by_other_name + ", {parameters: \"wte.*\" weight_decay: 0}]"}),
              Mentions("optimizer.groups[0]: 'lm_head.weight' ... 'wte.weight' ... groups[1]"));
}

TEST(Frozen, LayersHaveNoGradientsAndThoseBeforeThemNone) {
  const RunConfig run = parse(kSmallGpt, {"model.frozen=[\"w?e\", \"h.0.*\", \"lm_head\"]"});
  const model::Graph graph = model::make_graph(run.model);
  for (const auto& parameter : graph.parameters)
    EXPECT_EQ(parameter.frozen, !parameter.name.starts_with("h.1.") && !parameter.name.starts_with("ln_f."))
        << parameter.name;
  for (const auto& node : graph.nodes)
    if (node.name.starts_with("h.0.mlp") || node.name == "wte") {
      EXPECT_FALSE(graph.runs_backward(node)) << node.name;
    }
}

TEST(Frozen, PatternsThatMeanNothingAreRefused) {
  EXPECT_THAT(refusal(kSmallConfig, {"model.frozen=[\"fc3\"]"}), Mentions("frozen: 'fc3' ... 'fc"));
  EXPECT_THAT(refusal(kSmallConfig, {"model.frozen=[\"conv*\"]"}), Mentions("frozen: 'conv*' ... fc1, fc2"));
  EXPECT_THAT(refusal(kSmallConfig, {"model.frozen=[\"relu1\"]"}), Mentions("frozen: 'relu1'"));
  EXPECT_THAT(refusal(kSmallConfig, {"model.frozen=[\"*\"]"}), Mentions("frozen"));
  EXPECT_THAT(refusal(kSmallGpt, {"model.frozen=[\"wte\"]"}),
              Mentions("frozen: 'wte.weight' ... wte and lm_head ... only wte"));
}

TEST(Averages, AreReadAsTheyStand) {
  EXPECT_EQ(parse(kSmallConfig).optimizer.average, optim::AverageOptions{});
  const RunConfig run = parse(kSmallConfig, {"optimizer.ema={decay: 0.99 start_step: 7 evaluate: true}"});
  EXPECT_EQ(run.optimizer.average, (optim::AverageOptions{.enabled = true, .decay = 0.99, .start_step = 7}));
  EXPECT_TRUE(run.evaluates_average);
  EXPECT_EQ(optim::state_slots(run.optimizer), 1);
  EXPECT_THAT(refusal(kSmallConfig, {"optimizer.ema={decay: 1}"}), Mentions("optimizer.ema.decay: expected"));
}

TEST(MathHash, KnowsGroupsFrozenLayersAndAverages) {
  const uint64_t plain = parse(kSmallConfig).math_hash;
  for (const char* change : {"optimizer.groups={parameters: \"*\" weight_decay: 0.5}",
                             "model.frozen=[\"fc1\"]", "optimizer.ema={}", "optimizer.schedule.linear={}"})
    EXPECT_NE(parse(kSmallConfig, {change}).math_hash, plain) << change;
  EXPECT_EQ(parse(kSmallConfig, {"optimizer.ema={evaluate: true}"}).math_hash,
            parse(kSmallConfig, {"optimizer.ema={}"}).math_hash);
}

TEST(EffectiveText, ReadsBackAsTheSameRun) {
  const RunConfig run =
      parse(kSmallConfig, {"model.frozen=[\"fc1\"]", "optimizer.ema={decay: 0.9}",
                           "optimizer.groups={parameters: \"*.bias\" learning_rate_factor: 2}",
                           "optimizer.schedule={points: {point: {at: 3 factor: 0.5} unit: EPOCHS}}"});
  const RunConfig again = parse(run.effective_text);
  EXPECT_EQ(again.config_hash, run.config_hash);
  EXPECT_EQ(again.math_hash, run.math_hash);
  EXPECT_EQ(again.group_rates, run.group_rates);
}

}  // namespace
}  // namespace lockstep::config
