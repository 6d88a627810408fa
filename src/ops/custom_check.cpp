#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <latch>
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
  /// They begin `shift` numbers behind a place that is the same for all.
  Guarded(std::string name, size_t count, float value, size_t shift)
      : name_(std::move(name)), begin_(kGuards + shift), all_(count + begin_ + kGuards, kGuard) {
    std::ranges::fill(numbers(), value);
  }
  Guarded(std::string name, const std::vector<float>& values, size_t shift)
      : Guarded(std::move(name), values.size(), 0, shift) {
    std::ranges::copy(values, numbers().begin());
  }
  std::span<float> numbers() { return std::span(all_).subspan(begin_, all_.size() - begin_ - kGuards); }
  std::span<const float> numbers() const {
    return std::span(all_).subspan(begin_, all_.size() - begin_ - kGuards);
  }
  std::vector<float> values() const { return {numbers().begin(), numbers().end()}; }
  const std::string& name() const { return name_; }
  bool is_within() const {
    const auto is_guard = [](float value) {
      return std::bit_cast<uint32_t>(value) == std::bit_cast<uint32_t>(kGuard);
    };
    return std::all_of(all_.begin(), all_.end() - static_cast<std::ptrdiff_t>(numbers().size() + kGuards),
                       is_guard) &&
           std::all_of(all_.end() - kGuards, all_.end(), is_guard);
  }

 private:
  std::string name_;
  size_t begin_;
  std::vector<float> all_;
};

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(
      a, b, [](float x, float y) { return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y); });
}

/// What lies where a call may not read. An op that compares numbers, such as max(x, 0), makes the same of NaN
/// each time, but not of both large ones.
enum class Unread { nothing, nan, high, low };

float number_of(Unread unread) {
  return unread == Unread::high ? 1e3f : unread == Unread::low ? -1e3f : kNan;
}

class Checker {
 public:
  Checker(const Custom& op, const std::vector<Shape>& inputs, const GradientCheck& options)
      : op_(registered_op(op.name)),
        custom_(op),
        name_(op.name),
        attributes_(attributes_of(op)),
        shapes_(inputs),
        signature_(checked_signature(op, inputs)),
        options_(options) {
    for (int s = 0; s < options.samples; ++s) {
      std::vector<std::vector<float>> sample;
      for (const Shape& shape : shapes_) sample.push_back(drawn(shape, options.low, options.high));
      inputs_.push_back(std::move(sample));
      output_gradients_.push_back(drawn(signature_.output));
    }
    for (const CustomOp::Weight& weight : signature_.parameters)
      parameters_.push_back(weight.initial == CustomOp::Initial::one ? drawn(weight.shape, 0.5, 1.5)
                                                                     : drawn(weight.shape));
  }

  void check() {
    check_forward();
    if (signature_.by_position) check_positions();
    check_input_gradients();
    check_parameter_gradients();
    expect_same_elsewhere();
    check_threads();
    check_differences();
  }

 private:
  using Values = std::vector<float>;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("custom op '{}': {}", name_, what));
  }

  Values drawn(const Shape& shape, double low = -1, double high = 1) {
    Values values(static_cast<size_t>(shape.count()));
    const uint32_t stream = streams_++;
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(
          low + (high - low) * static_cast<double>(
                                   philox_uniform(options_.seed, RandomPurpose::data_generation, stream, i)));
    return values;
  }

  /// A call on guarded copies of everything. `call` runs it; the lists are of what it writes, by reference.
  template <class Run>
  void guarded_call(size_t sample, bool backward, Unread unread, std::vector<Guarded*> written,
                    const Run& run) const {
    std::vector<Guarded> inputs, parameters;
    for (size_t i = 0; i < shapes_.size(); ++i) {
      inputs.emplace_back(fmt::format("input {}", i), inputs_[sample][i], shift_);
      if (!may_read(i, backward)) std::ranges::fill(inputs.back().numbers(), number_of(unread));
    }
    for (size_t i = 0; i < parameters_.size(); ++i)
      parameters.emplace_back(fmt::format("parameter '{}'", signature_.parameters[i].name), parameters_[i],
                              shift_);
    Guarded kept("the output",
                 backward && signature_.backward_needs_output
                     ? output_of(sample)
                     : Values(static_cast<size_t>(signature_.output.count()), number_of(unread)),
                 shift_);
    Guarded gradient("the output's gradient", output_gradients_[sample], shift_);
    std::vector<std::span<const float>> input_spans, parameter_spans;
    for (size_t i = 0; i < inputs.size(); ++i)
      input_spans.push_back(may_read(i, backward) || unread != Unread::nothing
                                ? std::span<const float>(inputs[i].numbers())
                                : std::span<const float>());
    for (const Guarded& parameter : parameters) parameter_spans.push_back(parameter.numbers());
    const std::vector<std::span<float>> no_input_gradients(inputs.size()),
        no_parameter_gradients(parameters.size());
    CustomOp::Call call{.input_shapes = &shapes_,
                        .attributes = &attributes_,
                        .inputs = input_spans,
                        .parameters = parameter_spans,
                        .output = {},
                        .kept_output = {},
                        .output_gradient = {},
                        .input_gradients = no_input_gradients,
                        .parameter_gradients = no_parameter_gradients};
    if (backward) {
      call.output_gradient = std::as_const(gradient).numbers();
      if (signature_.backward_needs_output || unread != Unread::nothing)
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
    Guarded output("the output", static_cast<size_t>(signature_.output.count()), before, shift_);
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
      gradients.emplace_back(fmt::format("the gradient of input {}", i), inputs_[sample][i].size(), before,
                             shift_);
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
                             parameters_[i].size(), before, shift_);
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

  void check_forward() {
    std::vector<Values> outputs;
    for (size_t sample = 0; sample < inputs_.size(); ++sample) outputs.push_back(forward(sample, kNan));
    constexpr const char* kWhat = "the output";
    for (size_t sample = inputs_.size(); sample-- > 0;)
      expect_same(outputs[sample], forward(sample, 7.5f), kWhat,
                  "forward leaves elements of its output unwritten, or depends on more than what it reads");
    for (const Values& output : outputs) expect_finite(output, kWhat);
    outputs_ = std::move(outputs);
  }

  static Values last_row(const Values& values, const Shape& shape) {
    return {values.end() - static_cast<std::ptrdiff_t>(values.size()) / shape[0], values.end()};
  }

  /// The last position alone gives what it gives behind the others.
  void check_positions() const {
    std::vector<Shape> cut = shapes_;
    for (Shape& shape : cut) {
      std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
      dims[0] = 1;
      shape = Shape(dims);
    }
    Checker alone(custom_, cut, options_);
    const auto& parameters = alone.signature_.parameters;
    for (size_t i = 0; i < std::max(parameters.size(), parameters_.size()); ++i)
      if (i >= parameters.size() || i >= parameters_.size() ||
          parameters[i].shape != signature_.parameters[i].shape)
        fail("the signature says by_position, but parameters depend on how many positions there are");
    alone.parameters_ = parameters_;
    for (size_t sample = 0; sample < inputs_.size(); ++sample) {
      for (size_t i = 0; i < shapes_.size(); ++i)
        alone.inputs_[sample][i] = last_row(inputs_[sample][i], shapes_[i]);
      expect_same(last_row(outputs_[sample], signature_.output), alone.forward(sample, kNan), "the output",
                  "the signature says by_position, but the last position depends on others");
    }
  }

  /// Samples lie one after another, so that a tensor may begin at any number of a cache line.
  void expect_same_elsewhere() {
    constexpr const char* kWhy = "{} depends on where in memory its numbers lie";
    for (shift_ = 1; shift_ <= 3; ++shift_) {
      for (size_t sample = 0; sample < inputs_.size(); ++sample) {
        expect_same(outputs_[sample], forward(sample, 0.0f), "the output", fmt::format(kWhy, "forward"));
        const auto gradients = input_gradients(sample, 0.0f, Unread::nothing);
        for (size_t i = 0; i < gradients.size(); ++i)
          expect_same(input_gradients_[sample][i], gradients[i], fmt::format("the gradient of input {}", i),
                      fmt::format(kWhy, "backward_input"));
      }
      if (parameters_.empty()) continue;
      const auto gradients = parameter_gradients(0.0f, Unread::nothing);
      for (size_t i = 0; i < gradients.size(); ++i)
        expect_same(parameter_gradients_[i], gradients[i],
                    fmt::format("the gradient of parameter '{}'", signature_.parameters[i].name),
                    fmt::format(kWhy, "backward_parameters"));
    }
    shift_ = 0;
  }

  /// Calls `work(sample)` on several threads at once, again and again, and throws what it throws.
  template <class Work>
  void on_threads(const Work& work) const {
    constexpr size_t kThreads = 4;
    constexpr auto kTime = std::chrono::milliseconds(20);
    std::vector<std::string> problems(std::max(kThreads, inputs_.size()));
    {
      std::latch all_begin(static_cast<std::ptrdiff_t>(problems.size()));
      std::vector<std::jthread> threads;
      for (size_t thread = 0; thread < problems.size(); ++thread)
        threads.emplace_back([&, thread] {
          all_begin.arrive_and_wait();
          try {
            const auto end = std::chrono::steady_clock::now() + kTime;
            do work(thread % inputs_.size());
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
      expect_same(outputs_[sample], forward(sample, 0.0f), "the output", fmt::format(kWhy, "forward"));
    });
    on_threads([&](size_t sample) {
      const auto gradients = input_gradients(sample, 0.0f, Unread::nothing);
      for (size_t i = 0; i < gradients.size(); ++i)
        expect_same(input_gradients_[sample][i], gradients[i], fmt::format("the gradient of input {}", i),
                    fmt::format(kWhy, "backward_input"));
    });
    if (parameters_.empty()) return;
    on_threads([&](size_t) {
      const auto gradients = parameter_gradients(0.0f, Unread::nothing);
      for (size_t i = 0; i < gradients.size(); ++i)
        expect_same(parameter_gradients_[i], gradients[i],
                    fmt::format("the gradient of parameter '{}'", signature_.parameters[i].name),
                    fmt::format(kWhy, "backward_parameters"));
    });
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
        for (const Unread unread : {Unread::high, Unread::low})
          expect_same(first[i], input_gradients(sample, 0.0f, unread)[i], what,
                      "backward_input may read inputs and outputs only if the signature says so");
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
    const auto added = parameter_gradients(1.0f, Unread::nan);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const std::string what = fmt::format("the gradient of parameter '{}'", signature_.parameters[i].name);
      for (size_t k = 0; k < parameters_[i].size(); ++k)
        if (!std::isfinite(parameter_gradients_[i][k]))
          fail(
              fmt::format("element {} of {} is {}: backward_parameters may read inputs and outputs only if "
                          "the signature says so",
                          k, what, parameter_gradients_[i][k]));
      for (const Unread unread : {Unread::high, Unread::low})
        expect_same(parameter_gradients_[i], parameter_gradients(0.0f, unread)[i], what,
                    "backward_parameters may read inputs and outputs only if the signature says so");
      expect_same(parameter_gradients_[i], parameter_gradients(0.0f, Unread::nothing)[i], what,
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

  /// Sum of output gradients times outputs, and of the products' magnitudes.
  struct Value {
    double sum = 0, magnitude = 0;
  };
  Value value(size_t sample) const {
    const Values output = output_of(sample);
    Value value;
    for (size_t i = 0; i < output.size(); ++i) {
      const double product =
          static_cast<double>(output_gradients_[sample][i]) * static_cast<double>(output[i]);
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
  void check_tensor(Values& values, const Values& gradient, const std::string& what, const Measure& measure) {
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
        fail(fmt::format("element {} of {} is {}, but by differences of forward it is {:.6g}", element, what,
                         gradient[element], slope));
    }
    // A single threshold may well lie at a kink of one of the many numbers that are compared with it.
    if (count >= kFew && 2 * kinks >= count)
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
                     Value all;
                     for (size_t sample = 0; sample < inputs_.size(); ++sample) {
                       const Value one = value(sample);
                       all.sum += one.sum;
                       all.magnitude += one.magnitude;
                     }
                     return all;
                   });
  }

  std::shared_ptr<const CustomOp> op_;
  Custom custom_;
  std::string name_;
  CustomOp::Attributes attributes_;
  std::vector<Shape> shapes_;
  CustomOp::Signature signature_;
  GradientCheck options_;
  uint32_t streams_ = 0;
  size_t shift_ = 0;                         // of all tensors in memory
  std::vector<Values> outputs_;              // by sample
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
  require(options.low < options.high, "check_gradients: low must be below high");
  ops::Checker(op, inputs, options).check();
}

}  // namespace lockstep
