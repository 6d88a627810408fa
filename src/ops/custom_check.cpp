#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <latch>
#include <limits>
#include <thread>
#include <utility>

#include "base/philox.h"
#include "lockstep/error.h"
#include "ops/guarded_calls.h"

namespace lockstep {
namespace ops {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Checker {
 public:
  Checker(const Custom& op, const std::vector<Shape>& inputs, const GradientCheck& options)
      : custom_(op), calls_(op, inputs), options_(options) {
    for (int s = 0; s < options.samples; ++s) {
      std::vector<Numbers> sample;
      for (const Shape& shape : inputs) sample.push_back(drawn(shape, options.low, options.high));
      calls_.inputs.push_back(std::move(sample));
      calls_.output_gradients.push_back(drawn(calls_.signature().output));
    }
    for (const CustomOp::Weight& weight : calls_.signature().parameters)
      calls_.parameters.push_back(weight.initial == CustomOp::Initial::one ? drawn(weight.shape, 0.5, 1.5)
                                                                           : drawn(weight.shape));
  }

  void check() {
    check_forward();
    if (calls_.signature().by_position) check_positions();
    check_input_gradients();
    check_parameter_gradients();
    expect_same_elsewhere();
    check_threads();
    check_differences();
  }

 private:
  Numbers drawn(const Shape& shape, double low = -1, double high = 1) {
    Numbers values(static_cast<size_t>(shape.count()));
    const uint32_t stream = streams_++;
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(
          low + (high - low) * static_cast<double>(
                                   philox_uniform(options_.seed, RandomPurpose::data_generation, stream, i)));
    return values;
  }

  std::string parameter_gradient(size_t i) const {
    return fmt::format("the gradient of parameter '{}'", calls_.signature().parameters[i].name);
  }

  void check_forward() {
    std::vector<Numbers> outputs;
    for (size_t sample = 0; sample < calls_.inputs.size(); ++sample)
      outputs.push_back(calls_.forward(sample, kNan));
    constexpr const char* kWhat = "the output";
    for (size_t sample = calls_.inputs.size(); sample-- > 0;)
      calls_.expect_same(
          outputs[sample], calls_.forward(sample, 7.5f), kWhat,
          "forward leaves elements of its output unwritten, or depends on more than what it reads");
    for (const Numbers& output : outputs) calls_.expect_finite(output, kWhat);
    outputs_ = std::move(outputs);
  }

  static Numbers last_row(const Numbers& values, const Shape& shape) {
    return {values.end() - static_cast<std::ptrdiff_t>(values.size()) / shape[0], values.end()};
  }

  /// The last position alone gives what it gives behind the others.
  void check_positions() const {
    std::vector<Shape> cut = calls_.shapes();
    for (Shape& shape : cut) {
      std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
      dims[0] = 1;
      shape = Shape(dims);
    }
    Checker alone(custom_, cut, options_);
    const auto& parameters = alone.calls_.signature().parameters;
    for (size_t i = 0; i < std::max(parameters.size(), calls_.parameters.size()); ++i)
      if (i >= parameters.size() || i >= calls_.parameters.size() ||
          parameters[i].shape != calls_.signature().parameters[i].shape)
        calls_.fail("the signature says by_position, but parameters depend on how many positions there are");
    alone.calls_.parameters = calls_.parameters;
    for (size_t sample = 0; sample < calls_.inputs.size(); ++sample) {
      for (size_t i = 0; i < calls_.shapes().size(); ++i)
        alone.calls_.inputs[sample][i] = last_row(calls_.inputs[sample][i], calls_.shapes()[i]);
      calls_.expect_same(last_row(outputs_[sample], calls_.signature().output),
                         alone.calls_.forward(sample, kNan), "the output",
                         "the signature says by_position, but the last position depends on others");
    }
  }

  /// Samples lie one after another, so that a tensor may begin at any number of a cache line.
  void expect_same_elsewhere() {
    constexpr const char* kWhy = "{} depends on where in memory its numbers lie";
    for (calls_.shift = 1; calls_.shift <= 3; ++calls_.shift) {
      for (size_t sample = 0; sample < calls_.inputs.size(); ++sample) {
        calls_.expect_same(outputs_[sample], calls_.forward(sample, 0.0f), "the output",
                           fmt::format(kWhy, "forward"));
        const auto gradients = calls_.input_gradients(sample, 0.0f, Unread::nothing);
        for (size_t i = 0; i < gradients.size(); ++i)
          calls_.expect_same(input_gradients_[sample][i], gradients[i],
                             fmt::format("the gradient of input {}", i), fmt::format(kWhy, "backward_input"));
      }
      if (calls_.parameters.empty()) continue;
      const auto gradients = calls_.parameter_gradients(0.0f, Unread::nothing);
      for (size_t i = 0; i < gradients.size(); ++i)
        calls_.expect_same(parameter_gradients_[i], gradients[i], parameter_gradient(i),
                           fmt::format(kWhy, "backward_parameters"));
    }
    calls_.shift = 0;
  }

  /// Calls `work(sample)` on several threads at once, again and again, and throws what it throws.
  template <class Work>
  void on_threads(const Work& work) const {
    constexpr size_t kThreads = 4;
    constexpr auto kTime = std::chrono::milliseconds(20);
    std::vector<std::string> problems(std::max(kThreads, calls_.inputs.size()));
    {
      std::latch all_begin(static_cast<std::ptrdiff_t>(problems.size()));
      std::vector<std::jthread> threads;
      for (size_t thread = 0; thread < problems.size(); ++thread)
        threads.emplace_back([&, thread] {
          all_begin.arrive_and_wait();
          try {
            const auto end = std::chrono::steady_clock::now() + kTime;
            do work(thread % calls_.inputs.size());
            while (std::chrono::steady_clock::now() < end);
          } catch (const std::exception& error) {
            problems[thread] = error.what();
          }
        });
    }
    for (const std::string& problem : problems)
      if (!problem.empty()) throw Error(problem);
  }

  void check_threads() const {
    constexpr const char* kWhy = "{} depends on what other threads call at the same time";
    on_threads([&](size_t sample) {
      calls_.expect_same(outputs_[sample], calls_.forward(sample, 0.0f), "the output",
                         fmt::format(kWhy, "forward"));
    });
    on_threads([&](size_t sample) {
      const auto gradients = calls_.input_gradients(sample, 0.0f, Unread::nothing);
      for (size_t i = 0; i < gradients.size(); ++i)
        calls_.expect_same(input_gradients_[sample][i], gradients[i],
                           fmt::format("the gradient of input {}", i), fmt::format(kWhy, "backward_input"));
    });
    if (calls_.parameters.empty()) return;
    on_threads([&](size_t) {
      const auto gradients = calls_.parameter_gradients(0.0f, Unread::nothing);
      for (size_t i = 0; i < gradients.size(); ++i)
        calls_.expect_same(parameter_gradients_[i], gradients[i], parameter_gradient(i),
                           fmt::format(kWhy, "backward_parameters"));
    });
  }

  void check_input_gradients() {
    for (size_t sample = 0; sample < calls_.inputs.size(); ++sample) {
      const auto first = calls_.input_gradients(sample, kNan, Unread::nan);
      for (size_t i = 0; i < calls_.shapes().size(); ++i) {
        const std::string what = fmt::format("the gradient of input {}", i);
        const auto again = calls_.input_gradients(sample, 7.5f, Unread::nan);
        calls_.expect_same(first[i], again[i], what,
                           "backward_input leaves elements unwritten, or depends on more than what it reads");
        for (size_t k = 0; k < first[i].size(); ++k)
          if (!std::isfinite(first[i][k]))
            calls_.fail(
                fmt::format("element {} of {} is {}: backward_input may read inputs and outputs only if the "
                            "signature says so",
                            k, what, first[i][k]));
        for (const Unread unread : {Unread::high, Unread::low})
          calls_.expect_same(first[i], calls_.input_gradients(sample, 0.0f, unread)[i], what,
                             "backward_input may read inputs and outputs only if the signature says so");
        calls_.expect_same(first[i], calls_.input_gradients(sample, 0.0f, Unread::nothing)[i], what,
                           "backward_input depends on whether there is what it may not read");
        for (size_t unwanted = 0; unwanted < calls_.shapes().size(); ++unwanted)
          if (unwanted != i)
            calls_.expect_same(
                first[i], calls_.input_gradients(sample, 0.0f, Unread::nothing, unwanted)[i], what,
                fmt::format("backward_input depends on whether the gradient of input {} is wanted",
                            unwanted));
      }
      input_gradients_.push_back(first);
    }
  }

  void check_parameter_gradients() {
    if (calls_.parameters.empty()) return;
    parameter_gradients_ = calls_.parameter_gradients(0.0f, Unread::nan);
    const auto added = calls_.parameter_gradients(1.0f, Unread::nan);
    for (size_t i = 0; i < calls_.parameters.size(); ++i) {
      const std::string what = parameter_gradient(i);
      for (size_t k = 0; k < calls_.parameters[i].size(); ++k)
        if (!std::isfinite(parameter_gradients_[i][k]))
          calls_.fail(
              fmt::format("element {} of {} is {}: backward_parameters may read inputs and outputs only if "
                          "the signature says so",
                          k, what, parameter_gradients_[i][k]));
      for (const Unread unread : {Unread::high, Unread::low})
        calls_.expect_same(parameter_gradients_[i], calls_.parameter_gradients(0.0f, unread)[i], what,
                           "backward_parameters may read inputs and outputs only if the signature says so");
      calls_.expect_same(parameter_gradients_[i], calls_.parameter_gradients(0.0f, Unread::nothing)[i], what,
                         "backward_parameters depends on more than what it reads");
      for (size_t k = 0; k < calls_.parameters[i].size(); ++k) {
        const float sum = 1.0f + parameter_gradients_[i][k];
        if (std::fabs(added[i][k] - sum) > 1e-4f * (1.0f + std::fabs(sum)))
          calls_.fail(
              fmt::format("element {} of {} is {} if 1 stood there before, and {} if 0 did: "
                          "backward_parameters must add to it",
                          k, what, added[i][k], parameter_gradients_[i][k]));
      }
      for (size_t unwanted = 0; unwanted < calls_.parameters.size(); ++unwanted)
        if (unwanted != i)
          calls_.expect_same(
              parameter_gradients_[i], calls_.parameter_gradients(0.0f, Unread::nothing, unwanted)[i], what,
              fmt::format("backward_parameters depends on whether the gradient of '{}' is wanted",
                          calls_.signature().parameters[unwanted].name));
    }
  }

  /// Sum of output gradients times outputs, and of the products' magnitudes.
  struct Value {
    double sum = 0, magnitude = 0;
  };
  Value value(size_t sample) const {
    const Numbers output = calls_.forward(sample, 0.0f);
    Value value;
    for (size_t i = 0; i < output.size(); ++i) {
      const double product =
          static_cast<double>(calls_.output_gradients[sample][i]) * static_cast<double>(output[i]);
      value.sum += product;
      value.magnitude += std::fabs(product);
    }
    return value;
  }

  /// `bend` is near 0 but at a kink, where one-sided slopes differ however near; both halves of a kink at the
  /// very place would cancel in the slope.
  struct Difference {
    double slope, bend;
    double unsure(const Difference& wider) const {
      return std::max(std::fabs(wider.slope - slope), bend / 4);
    }
  };

  /// Of fourth order; `measure` is evaluated with `at` moved. `here` is what it says without.
  template <class Measure>
  static Difference difference(float& at, double step, double here, const Measure& measure) {
    const float middle = at;
    const auto moved = [&](double by) {
      at = static_cast<float>(static_cast<double>(middle) + by);
      return measure().sum;
    };
    const double right = moved(step), left = moved(-step), far_right = moved(2 * step),
                 far_left = moved(-2 * step);
    at = middle;
    const double near = right + left - 2 * here, far = far_right + far_left - 2 * here;
    return {(8 * (right - left) - (far_right - far_left)) / (12 * step),
            std::fabs(far / (2 * step) - 2 * near / step)};
  }

  template <class Measure>
  void check_tensor(Numbers& values, const Numbers& gradient, const std::string& what,
                    const Measure& measure) {
    // The narrower one steps over fewer kinks, but sees more of the rounding of forward.
    constexpr double kSteps[] = {0x1p-5, 0x1p-8}, kRounding = 2e-7;
    constexpr size_t kFew = 8;
    const size_t count = std::min(values.size(), static_cast<size_t>(std::max(1, options_.most_elements)));
    const Value here = measure();
    const double magnitude = std::max(1.0, here.magnitude);
    std::vector<Difference> coarse, fine;
    double largest = 0;
    for (size_t n = 0; n < count; ++n) {
      const size_t element = n * values.size() / count;
      coarse.push_back(difference(values[element], 2 * kSteps[0], here.sum, measure));
      fine.push_back(difference(values[element], kSteps[0], here.sum, measure));
      largest = std::max(
          {largest, std::fabs(fine.back().slope), std::fabs(static_cast<double>(gradient[element]))});
    }
    size_t kinks = 0;
    for (size_t n = 0; n < count; ++n) {
      const size_t element = n * values.size() / count;
      double slope = fine[n].slope, unsure = fine[n].unsure(coarse[n]);
      double allowed = options_.tolerance * largest + kRounding * magnitude / kSteps[0];
      if (unsure > allowed) {
        const Difference narrow = difference(values[element], kSteps[1], here.sum, measure);
        slope = narrow.slope;
        unsure = narrow.unsure(difference(values[element], 2 * kSteps[1], here.sum, measure));
        allowed = options_.tolerance * largest + kRounding * magnitude / kSteps[1];
      }
      if (unsure > allowed)
        ++kinks;
      else if (std::fabs(static_cast<double>(gradient[element]) - slope) > allowed + 2 * unsure)
        calls_.fail(fmt::format("element {} of {} is {}, but by differences of forward it is {:.6g}", element,
                                what, gradient[element], slope));
    }
    // A single threshold may well lie at a kink of one of the many numbers that are compared with it.
    if (count >= kFew && 2 * kinks >= count)
      calls_.fail(
          fmt::format("forward has no derivative at {} of {} elements of {}, by differences of two widths",
                      kinks, count, what.substr(what.find("of ") + 3)));
  }

  void check_differences() {
    for (size_t sample = 0; sample < calls_.inputs.size(); ++sample)
      for (size_t i = 0; i < calls_.shapes().size(); ++i)
        check_tensor(calls_.inputs[sample][i], input_gradients_[sample][i],
                     fmt::format("the gradient of input {}", i), [&] { return value(sample); });
    for (size_t i = 0; i < calls_.parameters.size(); ++i)
      check_tensor(calls_.parameters[i], parameter_gradients_[i], parameter_gradient(i), [&] {
        Value all;
        for (size_t sample = 0; sample < calls_.inputs.size(); ++sample) {
          const Value one = value(sample);
          all.sum += one.sum;
          all.magnitude += one.magnitude;
        }
        return all;
      });
  }

  Custom custom_;
  GuardedCalls calls_;
  GradientCheck options_;
  uint32_t streams_ = 0;
  std::vector<Numbers> outputs_;                       // by sample
  std::vector<std::vector<Numbers>> input_gradients_;  // what the op says of them
  std::vector<Numbers> parameter_gradients_;
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
  require(options.low < options.high, "check_gradients: low must be below high");
  ops::Checker(op, inputs, options).check();
}

}  // namespace lockstep
