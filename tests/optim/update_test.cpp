#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "base/half.h"
#include "base/instruction_set.h"
#include "lockstep/error.h"
#include "ops/op_testing.h"
#include "optim/formulas.h"
#include "optim/loops/loops.h"
#include "optim/optimizer.h"

namespace lockstep::optim {
namespace {

using testing::expect_near;
using testing::random_values;
using Floats = std::vector<float>;

std::vector<double> widen(const Floats& values) { return {values.begin(), values.end()}; }

/// A parameter with its optimizer state, on a device whose work runs at once unless told otherwise.
struct Parameter {
  Floats values;
  Floats state[kMostStateSlots];

  explicit Parameter(Floats initial) : values(std::move(initial)) {
    for (Floats& slot : state) slot.assign(values.size(), 0.0f);
  }

  UpdateArguments arguments(const OptimizerOptions& options, const Floats& gradients, size_t begin,
                            size_t count) {
    return {.parameters = values.data() + begin,
            .gradients = gradients.data() + begin,
            .state = {state[0].data() + begin, state[1].data() + begin, state[2].data() + begin},
            .count = static_cast<int64_t>(count),
            .rates = {.weight_decay = options.weight_decay}};
  }
  bool operator==(const Parameter&) const = default;
};

UpdateConstants constants_of(const OptimizerOptions& options, uint64_t step) {
  return {.learning_rate = options.learning_rate,
          .beta1_power = std::pow(options.beta1, static_cast<double>(step + 1)),
          .beta2_power = std::pow(options.beta2, static_cast<double>(step + 1)),
          .average_gain = average_gain(options.average, static_cast<int64_t>(step) + 1),
          .updates = static_cast<uint32_t>(step + 1)};
}

class Update : public ::testing::Test {
 protected:
  /// One step over all of `parameter`.
  void step(const OptimizerOptions& options, Parameter& parameter, const Floats& gradients, uint64_t number,
            bool decay = true, double gradient_scale = 1) {
    UpdateArguments arguments = parameter.arguments(options, gradients, 0, gradients.size());
    if (!decay) arguments.rates.weight_decay = 0;
    arguments.gradient_scale = gradient_scale;
    update(options, arguments, constants_of(options, number), *stream_);
  }

  std::unique_ptr<device::Device> device_ = device::make_cpu_device();
  std::unique_ptr<device::Stream> stream_ = device_->create_stream("compute");
};

struct GoldenUpdate {
  std::string name;
  OptimizerOptions options;
};

const GoldenUpdate kGoldenCases[] = {
    {"sgd", {.learning_rate = 0.1}},
    {"sgd_decay", {.learning_rate = 0.1, .weight_decay = 0.3}},
    {"sgd_momentum", {.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.2}},
    {"sgd_nesterov", {.learning_rate = 0.1, .momentum = 0.8, .nesterov = true, .weight_decay = 0.2}},
    {"adam", {.kind = OptimizerKind::adam, .learning_rate = 0.05, .beta1 = 0.9, .beta2 = 0.99}},
    {"adam_decay",
     {.kind = OptimizerKind::adam,
      .learning_rate = 0.05,
      .beta1 = 0.8,
      .beta2 = 0.95,
      .epsilon = 1e-3,
      .weight_decay = 0.3}},
    {"adamw",
     {.kind = OptimizerKind::adamw, .learning_rate = 0.05, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.3}},
};

TEST_F(Update, FollowsPyTorchForFiveSteps) {
  for (const GoldenUpdate& c : kGoldenCases) {
    const auto golden = testing::read_golden("optimizers", c.name);
    const auto& initial = golden.at("parameters").values;
    const auto& gradients = golden.at("gradients").values;
    const auto& expected = golden.at("after each step").values;
    const size_t count = initial.size();
    Parameter parameter(Floats(initial.begin(), initial.end()));
    for (size_t i = 0; i < 5; ++i) {
      const auto row = [&](const std::vector<double>& all) {
        return std::vector<double>(all.begin() + static_cast<int64_t>(i * count),
                                   all.begin() + static_cast<int64_t>((i + 1) * count));
      };
      const auto gradient = row(gradients);
      step(c.options, parameter, Floats(gradient.begin(), gradient.end()), i);
      expect_near(widen(parameter.values), row(expected), 1e-6, c.name + " after step " + std::to_string(i));
    }
  }
}

TEST_F(Update, OfAParameterThatWasFrozenIsPyTorchsOfOneWithoutGradientsUntilThen) {
  const GoldenUpdate cases[] = {
      {"adam", {.kind = OptimizerKind::adam, .learning_rate = 0.05, .weight_decay = 0.1}},
      {"adamw",
       {.kind = OptimizerKind::adamw,
        .learning_rate = 0.05,
        .beta1 = 0.8,
        .beta2 = 0.95,
        .epsilon = 1e-3,
        .weight_decay = 0.3}}};
  for (const GoldenUpdate& c : cases) {
    const auto golden = testing::read_golden("late_gradients", c.name);
    const auto& initial = golden.at("parameters").values;
    const size_t count = initial.size();
    Parameter parameter(Floats(initial.begin(), initial.end()));
    for (size_t i = 0; i < 5; ++i) {
      const auto row = [&](const char* name) {
        const auto first = golden.at(name).values.begin() + static_cast<int64_t>(i * count);
        return std::vector<double>(first, first + static_cast<int64_t>(count));
      };
      const auto gradient = row("gradients");
      const Floats gradients(gradient.begin(), gradient.end());
      UpdateArguments arguments = parameter.arguments(c.options, gradients, 0, count);
      arguments.rates.updates_before = 3;
      update(c.options, arguments, constants_of(c.options, 3 + i), *stream_);
      expect_near(widen(parameter.values), row("after each step"), 1e-6,
                  c.name + " after its update " + std::to_string(i + 1));
    }
  }
}

TEST_F(Update, CountsUpdatesOfAParameterHoweverLateItBegins) {
  for (const uint32_t before : {1u, 7u, 100000u, UINT32_MAX - 1001}) {
    UpdateArguments arguments;
    arguments.rates.updates_before = before;
    for (const uint32_t own : {1u, 2u, 3u, 10u, 1000u}) {
      const UpdateConstants constants{.beta1_power = 0.5, .updates = before + own};
      EXPECT_NEAR(power_of_updates(0.9, 0.5, arguments, constants) / std::pow(0.9, own), 1, 1e-13)
          << before << " " << own;
    }
  }
  EXPECT_EQ(power_of_updates(0.9, 0.5, {}, {.updates = 12}), 0.5) << "that of all updates";
}

TEST_F(Update, AverageIsPyTorchsAfterEachStep) {
  const GoldenUpdate cases[] = {
      {"sgd", {.learning_rate = 0.1, .average = {.enabled = true, .decay = 0.9}}},
      {"sgd_momentum",
       {.learning_rate = 0.1, .momentum = 0.9, .average = {.enabled = true, .decay = 0.75, .start_step = 3}}},
      {"adamw",
       {.kind = OptimizerKind::adamw,
        .learning_rate = 0.05,
        .beta2 = 0.95,
        .weight_decay = 0.3,
        .average = {.enabled = true, .decay = 0.5, .start_step = 2}}}};
  for (const GoldenUpdate& c : cases) {
    const auto golden = testing::read_golden("averages", c.name);
    const auto& initial = golden.at("parameters").values;
    const auto& gradients = golden.at("gradients").values;
    const auto& expected = golden.at("average after each step").values;
    const auto count = static_cast<int64_t>(initial.size());
    Parameter parameter(Floats(initial.begin(), initial.end()));
    for (int64_t i = 0; i < 6; ++i) {
      step(c.options, parameter, Floats(gradients.begin() + i * count, gradients.begin() + (i + 1) * count),
           static_cast<uint64_t>(i));
      expect_near(widen(parameter.state[state_slots(c.options) - 1]),
                  {expected.begin() + i * count, expected.begin() + (i + 1) * count}, 1e-6,
                  c.name + " after step " + std::to_string(i));
    }
  }
}

TEST_F(Update, OfAGroupTakesItsRates) {
  for (GoldenUpdate c : kGoldenCases) {
    Parameter grouped({1, 2, 3}), plain({1, 2, 3});
    const Floats gradients{0.5f, -1, 2};
    UpdateArguments arguments = grouped.arguments(c.options, gradients, 0, 3);
    arguments.rates = {.weight_decay = 0.25, .learning_rate_factor = 0.5};
    update(c.options, arguments, constants_of(c.options, 0), *stream_);
    c.options.weight_decay = 0.25;
    c.options.learning_rate *= 0.5;
    step(c.options, plain, gradients, 0);
    EXPECT_EQ(grouped, plain) << c.name;
  }
}

TEST(Rates, AreTheGroupsOrTheOptimizers) {
  const OptimizerOptions options{.weight_decay = 0.1};
  const GroupRates groups{{"fc.bias", {.weight_decay = 0.3, .learning_rate_factor = 2}}};
  EXPECT_EQ(rates_of(options, groups, "fc.weight", false), (ParameterRates{.weight_decay = 0.1}));
  EXPECT_EQ(rates_of(options, groups, "ln.weight", true), ParameterRates{});
  EXPECT_EQ(rates_of(options, groups, "fc.bias", true), (ParameterRates{0.3, 2}));
}

TEST_F(Update, SgdStepWorkedOutByHand) {
  Parameter parameter({1, 2});
  step({.learning_rate = 0.5, .weight_decay = 0.25}, parameter, {4, 8}, 0);
  EXPECT_EQ(parameter.values, (Floats{1 - 0.5f * 4.25f, 2 - 0.5f * 8.5f}));
}

TEST_F(Update, MomentumStepsWorkedOutByHand) {
  const OptimizerOptions options{.learning_rate = 1, .momentum = 0.5};
  Parameter parameter({0});
  step(options, parameter, {4}, 0);
  EXPECT_EQ(parameter.values, Floats{-4});
  step(options, parameter, {1}, 1);  // buffer 0.5 * 4 + 1
  EXPECT_EQ(parameter.state[0], Floats{3});
  EXPECT_EQ(parameter.values, Floats{-7});
}

TEST_F(Update, FirstAdamStepIsTheLearningRateInTheGradientsDirection) {
  Parameter parameter({1, 1, 1});
  step({.kind = OptimizerKind::adam, .learning_rate = 0.125, .epsilon = 1e-12}, parameter, {1e-3f, -5, 100},
       0);
  expect_near(widen(parameter.values), {0.875, 1.125, 0.875}, 1e-6, "parameters");
}

TEST_F(Update, AdamOfAZeroGradientStaysPut) {
  Parameter parameter({1, -2});
  step({.kind = OptimizerKind::adam}, parameter, {0, 0}, 0);
  EXPECT_EQ(parameter.values, (Floats{1, -2}));
}

TEST_F(Update, ExemptParametersDoNotDecay) {
  for (GoldenUpdate c : kGoldenCases) {
    if (c.options.weight_decay == 0) continue;
    Parameter exempt({1, 2, 3}), plain({1, 2, 3}), decaying({1, 2, 3});
    const Floats gradients{0.5f, -1, 2};
    step(c.options, exempt, gradients, 0, false);
    step(c.options, decaying, gradients, 0, true);
    c.options.weight_decay = 0;
    step(c.options, plain, gradients, 0, true);
    EXPECT_EQ(exempt, plain) << c.name;
    EXPECT_FALSE(decaying == plain) << c.name;
  }
}

TEST_F(Update, ScalesTheGradientBeforeAnythingElse) {
  for (const GoldenUpdate& c : kGoldenCases) {
    Parameter scaled({1, 2, 3}), halved({1, 2, 3});
    step(c.options, scaled, {0.5f, -1, 2}, 0, true, 0.5);
    step(c.options, halved, {0.25f, -0.5f, 1}, 0);
    EXPECT_EQ(scaled, halved) << c.name;
  }
}

TEST_F(Update, AnySplitOfARangeGivesTheSameBits) {
  const size_t count = 1003;
  const auto initial = random_values(count, 1), noise = random_values(count, 2);
  const Floats gradients(noise.begin(), noise.end());
  for (const GoldenUpdate& c : kGoldenCases) {
    Parameter whole(Floats(initial.begin(), initial.end())), pieces = whole;
    for (uint64_t number = 0; number < 3; ++number) {
      step(c.options, whole, gradients, number);
      size_t begin = 0;
      for (const size_t size : {1, 16, 17, 0, 31, 64, 129, 745}) {
        update(c.options, pieces.arguments(c.options, gradients, begin, size),
               constants_of(c.options, number), *stream_);
        begin += size;
      }
      ASSERT_EQ(begin, count);
    }
    EXPECT_EQ(whole, pieces) << c.name;
  }
}

TEST_F(Update, AnyNumberOfThreadsGivesTheSameBits) {
  const size_t count = 300001;
  const auto initial = random_values(count, 3), noise = random_values(count, 4);
  const Floats gradients(noise.begin(), noise.end());
  for (const GoldenUpdate& c : kGoldenCases) {
    Parameter one(Floats(initial.begin(), initial.end())), several = one;
    step(c.options, one, gradients, 0);
    update(c.options, several.arguments(c.options, gradients, 0, count), constants_of(c.options, 0), *stream_,
           3);
    EXPECT_EQ(one, several) << c.name;
  }
}

/// The numbers that a formula reads and writes: a parameter's, then those of its state.
template <class Formula, int slots>
void apply_to_one(const Formula& formula, float gradient, std::vector<Floats>& numbers, size_t i) {
  if constexpr (slots == 0)
    formula(numbers[0][i], gradient);
  else if constexpr (slots == 1)
    formula(numbers[0][i], gradient, numbers[1][i]);
  else if constexpr (slots == 2)
    formula(numbers[0][i], gradient, numbers[1][i], numbers[2][i]);
  else
    formula(numbers[0][i], gradient, numbers[1][i], numbers[2][i], numbers[3][i]);
}

/// Bits, but of what is no number only that.
std::vector<uint32_t> bits_of(const Floats& values) {
  std::vector<uint32_t> bits;
  for (const float value : values)
    bits.push_back(std::isnan(value) ? 0x7FC00000u : std::bit_cast<uint32_t>(value));
  return bits;
}

/// Ordinary numbers, and between them those that instruction sets may treat in their own ways. `turn`: other
/// ones meet in another list.
Floats all_kinds_of_values(size_t count, uint32_t seed, size_t turn) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kKinds[] = {0.0f,  -0.0f,  1e-40f,    -1e-40f,    1e-30f,
                              3e38f, -3e38f, kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()};
  const auto noise = random_values(static_cast<int64_t>(count), seed);
  Floats values(noise.begin(), noise.end());
  for (size_t i = 0, n = 0; i < count; i += 3, ++n)
    values[i] = kKinds[(turn == 0 ? n : n / 10 + turn * n) % std::size(kKinds)];
  return values;
}

TEST(UpdateLoops, HaveTheBitsOfTheirFormulasWithEachInstructionSet) {
  EXPECT_EQ(all_update_loops().size(), instruction_sets().size());
  std::vector<GoldenUpdate> plain(std::begin(kGoldenCases), std::end(kGoldenCases));
  for (const OptimizerKind kind : {OptimizerKind::lars, OptimizerKind::lamb}) {
    plain.push_back({kind == OptimizerKind::lars ? "lars" : "lamb", {}});
    plain.back().options.kind = kind;
    plain.back().options.learning_rate = 0.05;
    plain.back().options.momentum = 0.9;
    plain.back().options.weight_decay = 0.3;
  }
  std::vector<GoldenUpdate> cases = plain;
  for (const GoldenUpdate& c : plain) {
    cases.push_back(c);
    cases.back().options.average = {.enabled = true, .decay = 0.9};
  }
  // Fewer than a vector, whole vectors, and a rest, behind which nothing is written.
  for (const size_t count : {1, 15, 16, 19, 1003})
    for (const GoldenUpdate& c : cases) {
      const Floats gradients = all_kinds_of_values(count + 1, 5, 0);
      UpdateArguments arguments{
          .rates = {.weight_decay = c.options.weight_decay, .learning_rate_factor = 0.5},
          .gradient_scale = 0.25};
      UpdateConstants constants = constants_of(c.options, 3);
      constants.average_gain = 0.1f;
      visit_formula(c.options, [&]<class Formula, int slots> {
        const Formula formula(c.options, arguments, constants);
        std::vector<Floats> before;
        for (uint32_t list = 1; list < 2 + slots; ++list)
          before.push_back(all_kinds_of_values(count + 1, 5 + list, list));
        if (slots > 1)  // a mean of squares, which has a root
          for (float& value : before[2]) value = std::abs(value);
        std::vector<Floats> expected = before;
        for (size_t i = 0; i < count; ++i) apply_to_one<Formula, slots>(formula, gradients[i], expected, i);
        for (const UpdateLoops* loops : all_update_loops()) {
          std::vector<Floats> made = before;
          UpdateElements elements{.parameters = made[0].data(),
                                  .gradients = gradients.data(),
                                  .state = {},
                                  .count = static_cast<int64_t>(count)};
          for (size_t slot = 0; slot < slots; ++slot) elements.state[slot] = made[1 + slot].data();
          loops->update<Formula, slots>(formula, elements);
          for (size_t list = 0; list < made.size(); ++list)
            EXPECT_EQ(bits_of(made[list]), bits_of(expected[list]))
                << c.name << ", list " << list << " of " << count << " with " << loops->instruction_set;
        }
      });
    }
}

TEST(UpdateLoops, OfStatisticsHaveTheBitsOfTheFormula) {
  const StatisticFormula formula{0.3f, 0.7f};
  for (const size_t count : {1, 16, 19, 1003}) {
    const Floats means = all_kinds_of_values(count, 1, 0), before = all_kinds_of_values(count + 1, 2, 1);
    Floats expected = before;
    for (size_t i = 0; i < count; ++i) formula(expected[i], means[i]);
    for (const UpdateLoops* loops : all_update_loops()) {
      Floats made = before;
      loops->statistic(formula, made.data(), means.data(), static_cast<int64_t>(count));
      EXPECT_EQ(bits_of(made), bits_of(expected)) << count << " with " << loops->instruction_set;
    }
  }
}

TEST_F(Update, LetsNotANumberThroughInItsElementOnly) {
  for (const GoldenUpdate& c : kGoldenCases) {
    Parameter parameter({1, 2});
    step(c.options, parameter, {std::nanf(""), 1}, 0);
    EXPECT_TRUE(std::isnan(parameter.values[0])) << c.name;
    EXPECT_TRUE(std::isfinite(parameter.values[1])) << c.name;
  }
}

TEST_F(Update, ReadsTheConstantsWhenItsWorkRuns) {
  const auto device = device::make_async_cpu_device({});
  const auto stream = device->create_stream("compute");
  UpdateConstants constants{.learning_rate = 1000};
  Parameter parameter({1});
  const Floats gradients{1};
  stream->launch([&constants] { constants.learning_rate = 0.5; });
  update({.learning_rate = 1000}, parameter.arguments({}, gradients, 0, 1), constants, *stream);
  stream->synchronize();
  EXPECT_EQ(parameter.values, Floats{0.5f});
}

TEST_F(Update, WithoutItsStateIsRefused) {
  Floats values{1}, gradients{1};
  const UpdateArguments arguments{.parameters = values.data(), .gradients = gradients.data(), .count = 1};
  EXPECT_THROW(update({.momentum = 0.9}, arguments, {}, *stream_), InternalError);
}

TEST_F(Update, StatisticsMoveByMomentumTowardsTheMean) {
  Floats values{1, 10, -4};
  const Floats sums{4, 8, 0};  // of two micro-batches: means 2, 4 and 0
  std::vector<bfloat16> copies(3);
  update_statistic(values.data(), {copies.data(), DType::bfloat16}, sums.data(), 3, 0.25f, 0.5, *stream_);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(copies[i].bits, bfloat16(values[i]).bits) << i;
  EXPECT_EQ(values, (Floats{1.25f, 8.5f, -3}));
}

}  // namespace
}  // namespace lockstep::optim
