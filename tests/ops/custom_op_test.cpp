#include "lockstep/custom_op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/error.h"
#include "mentions.h"
#include "ops/op_cases.h"
#include "ops/op_expect.h"

namespace lockstep::testing {
namespace {

template <class E, class Call>
std::string custom_op_message(const Call& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

/// y = a tanh(b) weight + factor bias, over the last dimension: two inputs and two parameters.
class Gated : public CustomOp {
 public:
  Signature signature(const std::vector<Shape>& inputs, const Attributes& attributes) const override {
    require(inputs.size() == 2 && inputs[0] == inputs[1], "gated: takes two inputs of one shape");
    attributes.expect_only({"factor"});
    const Shape row{inputs[0][-1]};
    return {.output = inputs[0],
            .parameters = {{.name = "weight", .shape = row, .initial = Initial::one, .is_norm_or_bias = true},
                           {.name = "bias", .shape = row, .initial = Initial::normal, .scale = 0.5f}},
            .backward_needs_input = {true, true},
            .by_position = inputs[0].rank() > 1,
            .flops = 24 * static_cast<double>(inputs[0].count())};
  }
  void forward(const Call& call) const override {
    const size_t columns = call.parameters[0].size();
    const auto factor = static_cast<float>(call.attributes->number("factor", 1));
    for (size_t i = 0; i < call.output.size(); ++i)
      call.output[i] = call.inputs[0][i] * std::tanh(call.inputs[1][i]) * call.parameters[0][i % columns] +
                       factor * call.parameters[1][i % columns];
  }
  void backward_input(const Call& call) const override {
    const size_t columns = call.parameters[0].size();
    for (size_t i = 0; i < call.output_gradient.size(); ++i) {
      const float gradient = call.output_gradient[i] * call.parameters[0][i % columns];
      const float t = std::tanh(call.inputs[1][i]);
      if (!call.input_gradients[0].empty()) call.input_gradients[0][i] = gradient * t;
      if (!call.input_gradients[1].empty())
        call.input_gradients[1][i] = gradient * call.inputs[0][i] * (1 - t * t);
    }
  }
  void backward_parameters(const Call& call) const override {
    const size_t columns = call.parameters[0].size();
    const auto factor = static_cast<float>(call.attributes->number("factor", 1));
    for (size_t i = 0; i < call.output_gradient.size(); ++i) {
      if (!call.parameter_gradients[0].empty())
        call.parameter_gradients[0][i % columns] +=
            call.output_gradient[i] * call.inputs[0][i] * std::tanh(call.inputs[1][i]);
      if (!call.parameter_gradients[1].empty())
        call.parameter_gradients[1][i % columns] += factor * call.output_gradient[i];
    }
  }
};

/// y = exp(rate x), whose backward reads no input, but what forward wrote.
class Exponentials : public CustomOp {
 public:
  Signature signature(const std::vector<Shape>& inputs, const Attributes&) const override {
    return {.output = inputs.at(0), .backward_needs_output = true};
  }
  void forward(const Call& call) const override {
    for (size_t i = 0; i < call.output.size(); ++i)
      call.output[i] = std::exp(static_cast<float>(call.attributes->number("rate")) * call.inputs[0][i]);
  }
  void backward_input(const Call& call) const override {
    for (size_t i = 0; i < call.output_gradient.size(); ++i)
      call.input_gradients[0][i] =
          static_cast<float>(call.attributes->number("rate")) * call.kept_output[i] * call.output_gradient[i];
  }
};

/// Squares every second number: another shape. `wrong` breaks one of the rules that CustomOp states.
struct Wrong {
  bool gradient = false, leaves_out = false, writes_beyond = false, keeps_state = false, reads_unsaid = false,
       overwrites = false, changes_input = false, has_no_slope = false;
};
class Halves : public CustomOp {
 public:
  explicit Halves(Wrong wrong = {}) : wrong_(wrong) {}
  Signature signature(const std::vector<Shape>& inputs, const Attributes&) const override {
    require(inputs.at(0).rank() == 1 && inputs[0][0] % 2 == 0, "halves: takes one dimension, an even number");
    return {.output = {inputs[0][0] / 2},
            .parameters = {{.name = "scale", .shape = {}, .initial = Initial::one}},
            .backward_needs_input = {!wrong_.reads_unsaid}};
  }
  void forward(const Call& call) const override {
    const float state = wrong_.keeps_state ? 1e-3f * static_cast<float>(calls_++) : 0.0f;
    for (size_t i = wrong_.leaves_out ? 1 : 0; i < call.output.size(); ++i) {
      const float x = call.inputs[0][2 * i];
      call.output[i] = call.parameters[0][0] * x * x + state;
      if (wrong_.has_no_slope) call.output[i] = std::sin(1e4f * x);
    }
    if (wrong_.writes_beyond) call.output.data()[call.output.size()] = 0;
    if (wrong_.changes_input) const_cast<float&>(call.inputs[0][1]) = 0;
  }
  void backward_input(const Call& call) const override {
    for (size_t i = 0; i < call.output_gradient.size(); ++i) {
      const float x = call.inputs[0].empty() ? 0.0f : call.inputs[0][2 * i];
      call.input_gradients[0][2 * i] =
          (wrong_.gradient ? 2.1f : 2.0f) * call.parameters[0][0] * x * call.output_gradient[i];
      call.input_gradients[0][2 * i + 1] = 0;
    }
  }
  void backward_parameters(const Call& call) const override {
    float sum = 0;
    for (size_t i = 0; i < call.output_gradient.size(); ++i) {
      const float x = call.inputs[0].empty() ? 0.0f : call.inputs[0][2 * i];
      sum += x * x * call.output_gradient[i];
    }
    if (wrong_.overwrites)
      call.parameter_gradients[0][0] = sum;
    else
      call.parameter_gradients[0][0] += sum;
  }

 private:
  Wrong wrong_;
  mutable std::atomic<int> calls_ = 0;
};

/// y = max(x, 0). A slip breaks a rule so that results are right in most calls.
enum class Slip {
  none,
  forgets_to_say,      ///< that backward reads its input
  forgets_the_output,  ///< the same by what forward wrote
  mixes_positions,     ///< but says by_position
  scratch_of_forward,  ///< that all threads share
  scratch_of_backward,
  reads_by_alignment,
  writes_beyond,            ///< the gradient
  looks_at_what_is_wanted,  ///< and does not write otherwise
  small_zeros               ///< instead of small gradients
};
class Careless : public CustomOp {
 public:
  explicit Careless(Slip slip) : slip_(slip) {}
  Signature signature(const std::vector<Shape>& inputs, const Attributes&) const override {
    return {.output = inputs.at(0),
            .backward_needs_input = std::vector<bool>(
                inputs.size(), slip_ != Slip::forgets_to_say && slip_ != Slip::forgets_the_output),
            .by_position = slip_ == Slip::mixes_positions};
  }
  void forward(const Call& call) const override {
    const std::span<const float> x = call.inputs[0];
    std::vector<float> own(x.size());
    const std::span<float> y = slip_ == Slip::scratch_of_forward ? std::span(scratch_) : std::span(own);
    for (size_t i = 0; i < x.size(); ++i) y[i] = std::max(x[i], 0.0f) + sum_of_others(call, i);
    wait();
    std::ranges::copy(y.first(x.size()), call.output.begin());
    if (slip_ == Slip::small_zeros)
      for (float& value : call.output) value *= 1e-4f;
    if (slip_ == Slip::reads_by_alignment && reinterpret_cast<uintptr_t>(x.data()) % 16 != 0)
      call.output[0] = std::nextafter(call.output[0], 2.0f);
  }
  void backward_input(const Call& call) const override {
    const auto dy = call.output_gradient;
    const auto& read = slip_ == Slip::forgets_the_output ? call.kept_output : call.inputs[0];
    std::vector<float> own(dy.size());
    const std::span<float> dx = slip_ == Slip::scratch_of_backward ? std::span(scratch_) : std::span(own);
    for (size_t i = 0; i < dy.size(); ++i) dx[i] = read[i] > 0 ? dy[i] : 0.0f;
    wait();
    if (slip_ == Slip::small_zeros) std::ranges::fill(dx, 0.0f);
    for (size_t k = 0; k < call.input_gradients.size(); ++k)
      if (!call.input_gradients[k].empty())
        for (size_t i = 0; i < dy.size(); ++i) call.input_gradients[k][i] = k == 0 ? dx[i] : 0.0f;
    if (slip_ == Slip::writes_beyond) call.input_gradients[0].data()[dy.size()] = 0;
    if (slip_ == Slip::looks_at_what_is_wanted && call.input_gradients.size() > 1 &&
        call.input_gradients[1].empty())
      call.input_gradients[0][0] += 1;
  }

 private:
  float sum_of_others(const Call& call, size_t i) const {
    return slip_ == Slip::mixes_positions && i > 0 ? 0.5f * std::max(call.inputs[0][i - 1], 0.0f) : 0.0f;
  }
  /// So that others write while the scratch is in use, on any machine.
  void wait() const {
    if (slip_ == Slip::scratch_of_forward || slip_ == Slip::scratch_of_backward)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  Slip slip_;
  mutable std::vector<float> scratch_ = std::vector<float>(32);
};

/// Knows nothing of ours: throws what the standard library throws.
class Throws : public CustomOp {
 public:
  Signature signature(const std::vector<Shape>& inputs, const Attributes&) const override {
    return {.output = inputs.at(1)};
  }
  void forward(const Call& call) const override {
    throw std::runtime_error(std::to_string(call.inputs[0][0]));
  }
  void backward_input(const Call&) const override {}
};

/// Once for each program.
void register_all() {
  [[maybe_unused]] static const bool done = [] {
    register_op("test.gated", std::make_shared<Gated>());
    register_op("test.exponentials", std::make_shared<Exponentials>());
    register_op("test.halves", std::make_shared<Halves>());
    register_op("test.throws", std::make_shared<Throws>());
    return true;
  }();
}

Array gated(const Array& a, const Array& b, const std::vector<Array>& parameters, double factor) {
  Array y = a;
  const size_t columns = parameters[0].values.size();
  for (size_t i = 0; i < y.values.size(); ++i)
    y.values[i] = a.values[i] * std::tanh(b.values[i]) * parameters[0].values[i % columns] +
                  factor * parameters[1].values[i % columns];
  return y;
}

OpCase gated_case(std::string name, const Shape& shape, int64_t batch, int threads) {
  OpCase c{.name = std::move(name),
           .op = Custom{"test.gated", {{"factor", 0.5}}},
           .inputs = {{shape}, {shape}},
           .batch = batch,
           .reference = [](const auto& inputs, const auto& parameters) {
             return std::vector<Array>{gated(inputs[0], inputs[1], parameters, 0.5)};
           }};
  c.options.intra_op_threads = threads;
  return c;
}

}  // namespace

template <>
std::vector<OpCase> cases_of<Custom>() {
  if (tested_device() != device::DeviceKind::cpu) return {};  // which refuse it, as a test below shows
  register_all();
  std::vector<OpCase> cases{gated_case("one", {1}, 1, 1), gated_case("rows", {5, 7}, 3, 1),
                            gated_case("two_threads", {4, 3}, 5, 2)};
  cases.push_back({.name = "reads_its_output",
                   .op = Custom{"test.exponentials", {{"rate", -0.5}}},
                   .inputs = {{{3, 4}}},
                   .batch = 3,
                   .reference = [](const auto& inputs, const auto&) {
                     Array y = inputs[0];
                     for (double& value : y.values) value = std::exp(-0.5 * value);
                     return std::vector<Array>{y};
                   }});
  return cases;
}

namespace {

class CustomOps : public ::testing::Test {
 protected:
  void SetUp() override { register_all(); }
};

std::string refusal_of(const Op& op, std::vector<TensorSpec> inputs) {
  return custom_op_message<ConfigError>([&] { ops::infer(op, inputs); });
}

TEST_F(CustomOps, SayWhatIsWrongWithAModel) {
  EXPECT_THAT(refusal_of(Custom{"test.gate", {}}, {{{4}}, {{4}}}), Mentions("test.gate ... test.gated"));
  EXPECT_THAT(refusal_of(Custom{"test.gated", {}}, {{{4}}}), Mentions("two inputs"));
  EXPECT_THAT(refusal_of(Custom{"test.gated", {{"factr", 1}}}, {{{4}}, {{4}}}), Mentions("factr ... factor"));
  EXPECT_THAT(refusal_of(Custom{"test.gated", {{"factor", 1}, {"factor", 2}}}, {{{4}}, {{4}}}),
              Mentions("factor ... twice"));
  EXPECT_THAT(refusal_of(Custom{"test.gated", {}}, {{{4}, DType::int32}, {{4}}}), Mentions("int32"));
  EXPECT_THAT(refusal_of(Custom{"test.gated", {}}, {}), Mentions("none"));
  EXPECT_THAT(refusal_of(Custom{"test.gated", {{"two words", 1}}}, {{{4}}, {{4}}}), Mentions("two words"));
  EXPECT_THAT(refusal_of(Custom{"test.gated", {{"factor", std::nan("")}}}, {{{4}}, {{4}}}),
              Mentions("factor"));
  EXPECT_THAT(refusal_of(Custom{"test.throws", {}}, {{{4}}}),
              Mentions("test.throws ... signature threw ... [4]"));
}

TEST_F(CustomOps, RefuseNamesThatAreTakenOrNone) {
  for (const char* name : {"test.gated", "", "two words"})
    EXPECT_THROW(register_op(name, std::make_shared<Gated>()), ConfigError) << name;
  EXPECT_THROW(register_op("test.null", nullptr), ConfigError);
}

TEST_F(CustomOps, GpusRefuseThemByName) {
  const Custom op{"test.gated", {}};
  const std::vector<TensorSpec> inputs{{{4}}, {{4}}};
  if (tested_device() == device::DeviceKind::cuda) {
    const std::string message = custom_op_message<DeviceError>(
        [&] { ops::make_kernel(device::DeviceKind::cuda, op, inputs, {.batch = 2}); });
    EXPECT_THAT(message, Mentions("test.gated ... --device cpu"));
  }
}

/// That of the first sample that throws, with the op's name.
TEST_F(CustomOps, ExceptionsOfOthersSayWhichOpAndSample) {
  if (tested_device() != device::DeviceKind::cpu) return;
  OpHarness harness(Custom{"test.throws", {}}, {{{1}}, {{1}}}, {.batch = 4, .intra_op_threads = 4});
  fill(harness.inputs[0], {10, 20, 30, 40});
  EXPECT_THAT(custom_op_message<Error>([&] { harness.forward(); }),
              Mentions("test.throws ... forward ... sample 1 ... 10.0"));
}

/// What a user's function throws arrives, whichever thread it was thrown on.
TEST_F(CustomOps, ErrorsOfTheirFunctionsArrive) {
  if (tested_device() != device::DeviceKind::cpu) return;
  OpHarness harness(Custom{"test.exponentials", {}}, {{{4}}}, {.batch = 4, .intra_op_threads = 2});
  EXPECT_THROW(harness.forward(), ConfigError);  // there is no attribute "rate"
}

TEST_F(CustomOps, GradientChecksAcceptRightOnes) {
  check_gradients("test.gated", {{5, 7}, {5, 7}}, {{"factor", 0.5}});
  check_gradients("test.exponentials", {{6}}, {{"rate", -2}}, {.seed = 7});
  check_gradients("test.halves", {{200}});
}

TEST_F(CustomOps, GradientChecksNoticeEveryBrokenRule) {
  const auto message = [](const std::string& name, Wrong wrong) {
    register_op("test.wrong." + name, std::make_shared<Halves>(wrong));
    return custom_op_message<Error>([&] { check_gradients("test.wrong." + name, {{12}}); });
  };
  EXPECT_THAT(message("gradient", {.gradient = true}), Mentions("gradient of input 0 ... differences"));
  EXPECT_THAT(message("leaves_out", {.leaves_out = true}), Mentions("unwritten ... element 0 of the output"));
  EXPECT_THAT(message("writes_beyond", {.writes_beyond = true}), Mentions("beyond the output"));
  EXPECT_THAT(message("keeps_state", {.keeps_state = true}), Mentions("depends"));
  EXPECT_THAT(message("reads_unsaid", {.reads_unsaid = true}), Mentions("nan ... signature"));
  EXPECT_THAT(message("overwrites", {.overwrites = true}), Mentions("scale ... add"));
  EXPECT_THAT(message("changes_input", {.changes_input = true}), Mentions("changed input 0"));
  EXPECT_THAT(message("has_no_slope", {.has_no_slope = true}), Mentions("no derivative"));
}

TEST_F(CustomOps, GradientChecksNoticeWhatSeldomShows) {
  const auto message = [](Slip slip, const std::vector<Shape>& inputs) {
    const std::string name = "test.slip." + std::to_string(static_cast<int>(slip));
    register_op(name, std::make_shared<Careless>(slip));
    return custom_op_message<Error>([&] { check_gradients(name, inputs); });
  };
  EXPECT_EQ(message(Slip::none, {{4, 8}}), "no error");
  EXPECT_THAT(message(Slip::forgets_to_say, {{4, 8}}), Mentions("backward_input ... signature"));
  EXPECT_THAT(message(Slip::forgets_the_output, {{4, 8}}), Mentions("backward_input ... signature"));
  EXPECT_THAT(message(Slip::mixes_positions, {{4, 8}}), Mentions("by_position"));
  EXPECT_THAT(message(Slip::reads_by_alignment, {{4, 8}}), Mentions("forward ... where in memory"));
  EXPECT_THAT(message(Slip::writes_beyond, {{4, 8}}), Mentions("beyond the gradient of input 0"));
  EXPECT_THAT(message(Slip::looks_at_what_is_wanted, {{4, 8}, {4, 8}}), Mentions("input 1 is wanted"));
  EXPECT_THAT(message(Slip::small_zeros, {{4, 8}}), Mentions("gradient of input 0 ... differences"));
  EXPECT_THAT(message(Slip::scratch_of_forward, {{4, 8}}), Mentions("forward ... other threads"));
  EXPECT_THAT(message(Slip::scratch_of_backward, {{4, 8}}), Mentions("backward_input ... other threads"));
}

/// y = log(x), which only positive numbers have.
class Logarithm : public CustomOp {
 public:
  Signature signature(const std::vector<Shape>& inputs, const Attributes&) const override {
    return {.output = inputs.at(0), .backward_needs_input = {true}};
  }
  void forward(const Call& call) const override {
    for (size_t i = 0; i < call.output.size(); ++i) call.output[i] = std::log(call.inputs[0][i]);
  }
  void backward_input(const Call& call) const override {
    for (size_t i = 0; i < call.output_gradient.size(); ++i)
      call.input_gradients[0][i] = call.output_gradient[i] / call.inputs[0][i];
  }
};

/// At a kink both sides' differences cancel to their mean, whatever the step.
TEST_F(CustomOps, GradientChecksKnowKinksAtTheVeryPlace) {
  register_op("test.relu", std::make_shared<Careless>(Slip::none));
  EXPECT_THAT(custom_op_message<Error>(
                  [] { check_gradients("test.relu", {{50}}, {}, {.low = -1e-6, .high = 1e-6}); }),
              Mentions("no derivative"));
}

TEST_F(CustomOps, GradientChecksTakeNumbersFromARange) {
  register_op("test.logarithm", std::make_shared<Logarithm>());
  check_gradients("test.logarithm", {{5}}, {}, {.low = 0.5, .high = 2});
  EXPECT_THROW(check_gradients("test.logarithm", {{5}}), Error);
  EXPECT_THROW(check_gradients("test.logarithm", {{5}}, {}, {.low = 1, .high = 1}), ConfigError);
}

/// A single threshold, which is compared with many numbers, lies at a kink of one of them.
class Threshold : public CustomOp {
 public:
  Signature signature(const std::vector<Shape>& inputs, const Attributes&) const override {
    return {
        .output = inputs.at(0), .parameters = {{.name = "at", .shape = {}}}, .backward_needs_input = {true}};
  }
  void forward(const Call& call) const override {
    for (size_t i = 0; i < call.output.size(); ++i)
      call.output[i] = std::max(call.inputs[0][i], call.parameters[0][0]);
  }
  void backward_input(const Call& call) const override {
    for (size_t i = 0; i < call.output_gradient.size(); ++i)
      call.input_gradients[0][i] = call.inputs[0][i] > call.parameters[0][0] ? call.output_gradient[i] : 0.0f;
  }
  void backward_parameters(const Call& call) const override {
    for (size_t i = 0; i < call.output_gradient.size(); ++i)
      if (!(call.inputs[0][i] > call.parameters[0][0]))
        call.parameter_gradients[0][0] += call.output_gradient[i];
  }
};

TEST_F(CustomOps, GradientChecksAcceptASingleThreshold) {
  register_op("test.threshold", std::make_shared<Threshold>());
  check_gradients("test.threshold", {{200}});
}

TEST_F(CustomOps, GradientChecksRefuseShapesThatDoNotFit) {
  EXPECT_THROW(check_gradients("test.halves", {{3}}), ConfigError);
  EXPECT_THROW(check_gradients("test.none", {{4}}), ConfigError);
}

}  // namespace
}  // namespace lockstep::testing
