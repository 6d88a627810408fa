#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <thread>

#include "base/philox.h"
#include "lockstep/error.h"
#include "ops/custom_op.h"

namespace lockstep {
namespace ops {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kGuards = 16;
constexpr float kGuard = -7.6309e33f;

/// Numbers with words around them that nobody may write.
class Guarded {
 public:
  Guarded(std::string name, size_t count, float value)
      : name_(std::move(name)), all_(count + 2 * kGuards, kGuard) {
    std::ranges::fill(numbers(), value);
  }
  Guarded(std::string name, const std::vector<float>& values) : Guarded(std::move(name), values.size(), 0) {
    std::ranges::copy(values, numbers().begin());
  }
  std::span<float> numbers() { return std::span(all_).subspan(kGuards, all_.size() - 2 * kGuards); }
  std::span<const float> numbers() const {
    return std::span(all_).subspan(kGuards, all_.size() - 2 * kGuards);
  }
  std::vector<float> values() const { return {numbers().begin(), numbers().end()}; }
  const std::string& name() const { return name_; }
  bool is_within() const {
    const auto is_guard = [](float value) {
      return std::bit_cast<uint32_t>(value) == std::bit_cast<uint32_t>(kGuard);
    };
    return std::all_of(all_.begin(), all_.begin() + kGuards, is_guard) &&
           std::all_of(all_.end() - kGuards, all_.end(), is_guard);
  }

 private:
  std::string name_;
  std::vector<float> all_;
};

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(
      a, b, [](float x, float y) { return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y); });
}

/// What lies where a call may not read.
enum class Unread { nothing, nan };

class Checker {
 public:
  Checker(const Custom& op, const std::vector<Shape>& inputs, const GradientCheck& options)
      : op_(registered_op(op.name)),
        name_(op.name),
        attributes_(attributes_of(op)),
        shapes_(inputs),
        signature_(checked_signature(op, inputs)),
        options_(options) {
    for (int s = 0; s < options.samples; ++s) {
      std::vector<std::vector<float>> sample;
      for (const Shape& shape : shapes_) sample.push_back(drawn(shape));
      inputs_.push_back(std::move(sample));
      output_gradients_.push_back(drawn(signature_.output));
    }
    for (const CustomOp::Weight& weight : signature_.parameters) parameters_.push_back(drawn(weight.shape));
  }

  void check() {
    check_forward();
    check_input_gradients();
    check_parameter_gradients();
    check_differences();
  }

 private:
  using Values = std::vector<float>;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("custom op '{}': {}", name_, what));
  }

  Values drawn(const Shape& shape) {
    Values values(static_cast<size_t>(shape.count()));
    const uint32_t stream = streams_++;
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(
          2 * philox_uniform(options_.seed, RandomPurpose::data_generation, stream, i) - 1);
    return values;
  }

  /// A call on guarded copies of everything. `call` runs it; the lists are of what it writes, by reference.
  template <class Run>
  void guarded_call(size_t sample, bool backward, Unread unread, std::vector<Guarded*> written,
                    const Run& run) const {
    std::vector<Guarded> inputs, parameters;
    for (size_t i = 0; i < shapes_.size(); ++i) {
      inputs.emplace_back(fmt::format("input {}", i), inputs_[sample][i]);
      if (!may_read(i, backward)) std::ranges::fill(inputs.back().numbers(), kNan);
    }
    for (size_t i = 0; i < parameters_.size(); ++i)
      parameters.emplace_back(fmt::format("parameter '{}'", signature_.parameters[i].name), parameters_[i]);
    Guarded kept("the output", backward && signature_.backward_needs_output
                                   ? output_of(sample)
                                   : Values(static_cast<size_t>(signature_.output.count()), kNan));
    Guarded gradient("the output's gradient", output_gradients_[sample]);
    std::vector<std::span<const float>> input_spans, parameter_spans;
    for (size_t i = 0; i < inputs.size(); ++i)
      input_spans.push_back(may_read(i, backward) || unread == Unread::nan
                                ? std::span<const float>(inputs[i].numbers())
                                : std::span<const float>());
    for (const Guarded& parameter : parameters) parameter_spans.push_back(parameter.numbers());
    CustomOp::Call call{.input_shapes = &shapes_,
                        .attributes = &attributes_,
                        .inputs = input_spans,
                        .parameters = parameter_spans,
                        .output = {},
                        .kept_output = {},
                        .output_gradient = {},
                        .input_gradients = {},
                        .parameter_gradients = {}};
    if (backward) {
      call.output_gradient = std::as_const(gradient).numbers();
      if (signature_.backward_needs_output || unread == Unread::nan)
        call.kept_output = std::as_const(kept).numbers();
    }
    std::vector<std::pair<const Guarded*, Values>> constants;
    for (const auto* list : {&inputs, &parameters})
      for (const Guarded& one : *list) constants.emplace_back(&one, one.values());
    constants.emplace_back(&kept, kept.values());
    constants.emplace_back(&gradient, gradient.values());
    run(call);
    for (const auto& [one, before] : constants)
      if (!same_bits(one->numbers(), before)) fail(fmt::format("a call has changed {}", one->name()));
    for (const auto& [one, before] : constants)
      if (!one->is_within()) fail(fmt::format("a call has written beyond {}", one->name()));
    for (const Guarded* one : written)
      if (!one->is_within()) fail(fmt::format("a call has written beyond {}", one->name()));
  }

  bool may_read(size_t input, bool backward) const {
    return !backward || signature_.backward_needs_input[input];
  }

  Values forward(size_t sample, float before) const {
    Guarded output("the output", static_cast<size_t>(signature_.output.count()), before);
    guarded_call(sample, false, Unread::nothing, {&output}, [&](CustomOp::Call& call) {
      call.output = output.numbers();
      op_->forward(call);
    });
    return output.values();
  }

  Values output_of(size_t sample) const { return forward(sample, 0.0f); }

  std::vector<Values> input_gradients(size_t sample, float before, Unread unread,
                                      size_t unwanted = std::numeric_limits<size_t>::max()) const {
    std::vector<Guarded> gradients;
    for (size_t i = 0; i < shapes_.size(); ++i)
      gradients.emplace_back(fmt::format("the gradient of input {}", i), inputs_[sample][i].size(), before);
    std::vector<Guarded*> written;
    std::vector<std::span<float>> spans;
    for (size_t i = 0; i < gradients.size(); ++i) {
      written.push_back(&gradients[i]);
      spans.push_back(i == unwanted ? std::span<float>() : gradients[i].numbers());
    }
    guarded_call(sample, true, unread, written, [&](CustomOp::Call& call) {
      call.input_gradients = spans;
      op_->backward_input(call);
    });
    std::vector<Values> values;
    for (const Guarded& gradient : gradients) values.push_back(gradient.values());
    return values;
  }

  /// Sums over all samples, onto `before`.
  std::vector<Values> parameter_gradients(float before, Unread unread,
                                          size_t unwanted = std::numeric_limits<size_t>::max()) const {
    std::vector<Guarded> gradients;
    for (size_t i = 0; i < parameters_.size(); ++i)
      gradients.emplace_back(fmt::format("the gradient of parameter '{}'", signature_.parameters[i].name),
                             parameters_[i].size(), before);
    std::vector<Guarded*> written;
    std::vector<std::span<float>> spans;
    for (size_t i = 0; i < gradients.size(); ++i) {
      written.push_back(&gradients[i]);
      spans.push_back(i == unwanted ? std::span<float>() : gradients[i].numbers());
    }
    for (size_t sample = 0; sample < inputs_.size(); ++sample)
      guarded_call(sample, true, unread, written, [&](CustomOp::Call& call) {
        call.parameter_gradients = spans;
        op_->backward_parameters(call);
      });
    std::vector<Values> values;
    for (const Guarded& gradient : gradients) values.push_back(gradient.values());
    return values;
  }

  void expect_finite(const Values& values, const std::string& what) const {
    for (size_t i = 0; i < values.size(); ++i)
      if (!std::isfinite(values[i])) fail(fmt::format("element {} of {} is {}", i, what, values[i]));
  }

  void expect_same(const Values& first, const Values& second, const std::string& what,
                   const std::string& why) const {
    for (size_t i = 0; i < first.size(); ++i)
      if (std::bit_cast<uint32_t>(first[i]) != std::bit_cast<uint32_t>(second[i]))
        fail(fmt::format("{}: element {} of {} is once {} and once {}", why, i, what, first[i], second[i]));
  }

  void check_forward() const {
    std::vector<Values> outputs;
    for (size_t sample = 0; sample < inputs_.size(); ++sample) outputs.push_back(forward(sample, kNan));
    constexpr const char* kWhat = "the output";
    for (size_t sample = inputs_.size(); sample-- > 0;)
      expect_same(outputs[sample], forward(sample, 7.5f), kWhat,
                  "forward leaves elements of its output unwritten, or depends on more than what it reads");
    for (const Values& output : outputs) expect_finite(output, kWhat);
    expect_same_from_threads(outputs);
  }

  /// All samples at once, several times.
  void expect_same_from_threads(const std::vector<Values>& outputs) const {
    constexpr int kTimes = 8;
    std::vector<std::string> problems(inputs_.size());
    {
      std::vector<std::jthread> threads;
      for (size_t sample = 0; sample < inputs_.size(); ++sample)
        threads.emplace_back([&, sample] {
          try {
            for (int time = 0; time < kTimes; ++time)
              expect_same(outputs[sample], forward(sample, 0.0f), "the output",
                          "forward depends on what other threads call at the same time");
          } catch (const std::exception& error) {
            problems[sample] = error.what();
          }
        });
    }
    for (const std::string& problem : problems)
      if (!problem.empty()) throw Error(problem);
  }

  void check_input_gradients() {
    for (size_t sample = 0; sample < inputs_.size(); ++sample) {
      const auto first = input_gradients(sample, kNan, Unread::nan);
      for (size_t i = 0; i < shapes_.size(); ++i) {
        const std::string what = fmt::format("the gradient of input {}", i);
        const auto again = input_gradients(sample, 7.5f, Unread::nan);
        expect_same(first[i], again[i], what,
                    "backward_input leaves elements unwritten, or depends on more than what it reads");
        for (size_t k = 0; k < first[i].size(); ++k)
          if (!std::isfinite(first[i][k]))
            fail(
                fmt::format("element {} of {} is {}: backward_input may read inputs and outputs only if the "
                            "signature says so",
                            k, what, first[i][k]));
        expect_same(first[i], input_gradients(sample, 0.0f, Unread::nothing)[i], what,
                    "backward_input depends on whether there is what it may not read");
        for (size_t unwanted = 0; unwanted < shapes_.size(); ++unwanted)
          if (unwanted != i)
            expect_same(first[i], input_gradients(sample, 0.0f, Unread::nothing, unwanted)[i], what,
                        fmt::format("backward_input depends on whether the gradient of input {} is wanted",
                                    unwanted));
      }
      input_gradients_.push_back(first);
    }
  }

  void check_parameter_gradients() {
    if (parameters_.empty()) return;
    parameter_gradients_ = parameter_gradients(0.0f, Unread::nan);
    const auto again = parameter_gradients(0.0f, Unread::nothing),
               added = parameter_gradients(1.0f, Unread::nan);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const std::string what = fmt::format("the gradient of parameter '{}'", signature_.parameters[i].name);
      for (size_t k = 0; k < parameters_[i].size(); ++k)
        if (!std::isfinite(parameter_gradients_[i][k]))
          fail(
              fmt::format("element {} of {} is {}: backward_parameters may read inputs and outputs only if "
                          "the signature says so",
                          k, what, parameter_gradients_[i][k]));
      expect_same(parameter_gradients_[i], again[i], what,
                  "backward_parameters depends on more than what it reads");
      for (size_t k = 0; k < parameters_[i].size(); ++k) {
        const float sum = 1.0f + parameter_gradients_[i][k];
        if (std::fabs(added[i][k] - sum) > 1e-4f * (1.0f + std::fabs(sum)))
          fail(
              fmt::format("element {} of {} is {} if 1 stood there before, and {} if 0 did: "
                          "backward_parameters must add to it",
                          k, what, added[i][k], parameter_gradients_[i][k]));
      }
      for (size_t unwanted = 0; unwanted < parameters_.size(); ++unwanted)
        if (unwanted != i)
          expect_same(parameter_gradients_[i], parameter_gradients(0.0f, Unread::nothing, unwanted)[i], what,
                      fmt::format("backward_parameters depends on whether the gradient of '{}' is wanted",
                                  signature_.parameters[unwanted].name));
    }
  }

  /// Sum of output gradients times outputs.
  double value(size_t sample) const {
    const Values output = output_of(sample);
    double sum = 0;
    for (size_t i = 0; i < output.size(); ++i)
      sum += static_cast<double>(output_gradients_[sample][i]) * static_cast<double>(output[i]);
    return sum;
  }

  /// Of fourth order; `measure` is evaluated with `at` moved.
  template <class Measure>
  static double difference(float& at, double step, const Measure& measure) {
    const float middle = at;
    const auto moved = [&](double by) {
      at = static_cast<float>(static_cast<double>(middle) + by);
      return measure();
    };
    const double slope =
        (8 * (moved(step) - moved(-step)) - (moved(2 * step) - moved(-2 * step))) / (12 * step);
    at = middle;
    return slope;
  }

  template <class Measure>
  void check_tensor(Values& values, const Values& gradient, const std::string& what, const Measure& measure) {
    constexpr double kStep = 0x1p-5, kLeast = 0.05;
    const size_t count = std::min(values.size(), static_cast<size_t>(std::max(1, options_.most_elements)));
    std::vector<double> coarse, fine;
    double largest = kLeast;
    for (size_t n = 0; n < count; ++n) {
      float& at = values[n * values.size() / count];
      coarse.push_back(difference(at, 2 * kStep, measure));
      fine.push_back(difference(at, kStep, measure));
      largest = std::max(largest, std::fabs(fine.back()));
    }
    size_t kinks = 0;
    for (size_t n = 0; n < count; ++n) {
      const size_t element = n * values.size() / count;
      const double unsure = std::fabs(coarse[n] - fine[n]), allowed = options_.tolerance * largest;
      if (unsure > allowed) {
        ++kinks;
        continue;
      }
      if (std::fabs(static_cast<double>(gradient[element]) - fine[n]) > allowed + 2 * unsure)
        fail(fmt::format("element {} of {} is {}, but by differences of forward it is {:.6g}", element, what,
                         gradient[element], fine[n]));
    }
    if (2 * kinks >= count)
      fail(fmt::format("forward has no derivative at {} of {} elements of {}, by differences of two widths",
                       kinks, count, what.substr(what.find("of ") + 3)));
  }

  void check_differences() {
    for (size_t sample = 0; sample < inputs_.size(); ++sample)
      for (size_t i = 0; i < shapes_.size(); ++i)
        check_tensor(inputs_[sample][i], input_gradients_[sample][i],
                     fmt::format("the gradient of input {}", i), [&] { return value(sample); });
    for (size_t i = 0; i < parameters_.size(); ++i)
      check_tensor(parameters_[i], parameter_gradients_[i],
                   fmt::format("the gradient of parameter '{}'", signature_.parameters[i].name), [&] {
                     double sum = 0;
                     for (size_t sample = 0; sample < inputs_.size(); ++sample) sum += value(sample);
                     return sum;
                   });
  }

  std::shared_ptr<const CustomOp> op_;
  std::string name_;
  CustomOp::Attributes attributes_;
  std::vector<Shape> shapes_;
  CustomOp::Signature signature_;
  GradientCheck options_;
  uint32_t streams_ = 0;
  std::vector<std::vector<Values>> inputs_;  // by sample
  std::vector<Values> output_gradients_, parameters_;
  std::vector<std::vector<Values>> input_gradients_;  // what the op says of them
  std::vector<Values> parameter_gradients_;
};

}  // namespace
}  // namespace ops

void check_gradients(const std::string& name, const std::vector<Shape>& inputs,
                     const std::vector<CustomAttribute>& attributes, const GradientCheck& options) {
  const Custom op{name, attributes};
  std::vector<TensorSpec> specs;
  for (const Shape& shape : inputs) specs.push_back({shape});
  ops::infer(op, specs);  // refuses empty inputs
  require(options.samples > 0, "check_gradients: needs at least one sample");
  ops::Checker(op, inputs, options).check();
}

}  // namespace lockstep
