#include "ops/guarded_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::ops {
namespace {

constexpr size_t kGuards = 16;
constexpr float kGuard = -7.6309e33f;

bool same_bits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

float number_of(Unread unread) {
  constexpr float kLarge = 1e3f;
  return unread == Unread::high  ? kLarge
         : unread == Unread::low ? -kLarge
                                 : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace

/// Numbers with words around them that nobody may write.
class GuardedCalls::Guarded {
 public:
  /// They begin `shift` numbers behind a place that is the same for all.
  Guarded(std::string name, size_t count, float value, size_t shift)
      : name_(std::move(name)), begin_(kGuards + shift), all_(count + begin_ + kGuards, kGuard) {
    std::ranges::fill(numbers(), value);
  }
  Guarded(std::string name, const Numbers& values, size_t shift)
      : Guarded(std::move(name), values.size(), 0, shift) {
    std::ranges::copy(values, numbers().begin());
  }
  std::span<float> numbers() { return std::span(all_).subspan(begin_, all_.size() - begin_ - kGuards); }
  std::span<const float> numbers() const {
    return std::span(all_).subspan(begin_, all_.size() - begin_ - kGuards);
  }
  Numbers values() const { return {numbers().begin(), numbers().end()}; }
  const std::string& name() const { return name_; }
  bool is_within() const {
    const auto is_guard = [](float value) { return same_bits(value, kGuard); };
    const std::span<const float> all(all_);
    return std::ranges::all_of(all.first(begin_), is_guard) &&
           std::ranges::all_of(all.last(kGuards), is_guard);
  }

 private:
  std::string name_;
  size_t begin_;
  Numbers all_;
};

GuardedCalls::GuardedCalls(const Custom& op, std::vector<Shape> inputs)
    : op_(registered_op(op.name)),
      name_(op.name),
      attributes_(attributes_of(op)),
      shapes_(std::move(inputs)),
      signature_(checked_signature(op, shapes_)) {}

void GuardedCalls::fail(const std::string& what) const {
  throw Error(fmt::format("custom op '{}': {}", name_, what));
}

/// A call on guarded copies of everything. `run` makes it; `written` is what it writes.
template <class Run>
void GuardedCalls::make_call(size_t sample, bool backward, Unread unread, std::vector<Guarded>& written,
                             const Run& run) const {
  std::vector<Guarded> own_inputs, own_parameters;
  for (size_t i = 0; i < shapes_.size(); ++i) {
    own_inputs.emplace_back(fmt::format("input {}", i), inputs[sample][i], shift);
    if (!may_read(i, backward)) std::ranges::fill(own_inputs.back().numbers(), number_of(unread));
  }
  for (size_t i = 0; i < parameters.size(); ++i)
    own_parameters.emplace_back(fmt::format("parameter '{}'", signature_.parameters[i].name), parameters[i],
                                shift);
  const Guarded kept("the output",
                     backward && signature_.backward_needs_output
                         ? forward(sample, 0.0f)
                         : Numbers(static_cast<size_t>(signature_.output.count()), number_of(unread)),
                     shift);
  const Guarded gradient("the output's gradient", output_gradients[sample], shift);
  std::vector<std::span<const float>> input_spans, parameter_spans;
  for (size_t i = 0; i < own_inputs.size(); ++i)
    input_spans.push_back(may_read(i, backward) || unread != Unread::nothing
                              ? std::span<const float>(own_inputs[i].numbers())
                              : std::span<const float>());
  for (const Guarded& parameter : own_parameters) parameter_spans.push_back(parameter.numbers());
  const std::vector<std::span<float>> no_input_gradients(own_inputs.size()),
      no_parameter_gradients(own_parameters.size());
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
    call.output_gradient = gradient.numbers();
    if (signature_.backward_needs_output || unread != Unread::nothing) call.kept_output = kept.numbers();
  }
  std::vector<std::pair<const Guarded*, Numbers>> constants;
  for (const auto* list : {&own_inputs, &own_parameters})
    for (const Guarded& one : *list) constants.emplace_back(&one, one.values());
  constants.emplace_back(&kept, kept.values());
  constants.emplace_back(&gradient, gradient.values());
  run(call);
  for (const auto& [one, before] : constants)
    if (!std::ranges::equal(one->numbers(), before, same_bits))
      fail(fmt::format("a call has changed {}", one->name()));
  for (const auto& [one, before] : constants)
    if (!one->is_within()) fail(fmt::format("a call has written beyond {}", one->name()));
  for (const Guarded& one : written)
    if (!one.is_within()) fail(fmt::format("a call has written beyond {}", one.name()));
}

Numbers GuardedCalls::forward(size_t sample, float before) const {
  std::vector<Guarded> output;
  output.emplace_back("the output", static_cast<size_t>(signature_.output.count()), before, shift);
  make_call(sample, false, Unread::nothing, output, [&](CustomOp::Call& made) {
    made.output = output[0].numbers();
    op_->forward(made);
  });
  return output[0].values();
}

std::vector<Numbers> GuardedCalls::input_gradients(size_t sample, float before, Unread unread,
                                                   size_t unwanted) const {
  std::vector<Guarded> gradients;
  for (size_t i = 0; i < shapes_.size(); ++i)
    gradients.emplace_back(fmt::format("the gradient of input {}", i), inputs[sample][i].size(), before,
                           shift);
  std::vector<std::span<float>> spans;
  for (size_t i = 0; i < gradients.size(); ++i)
    spans.push_back(i == unwanted ? std::span<float>() : gradients[i].numbers());
  make_call(sample, true, unread, gradients, [&](CustomOp::Call& made) {
    made.input_gradients = spans;
    op_->backward_input(made);
  });
  std::vector<Numbers> values;
  for (const Guarded& gradient : gradients) values.push_back(gradient.values());
  return values;
}

std::vector<Numbers> GuardedCalls::parameter_gradients(float before, Unread unread, size_t unwanted) const {
  std::vector<Guarded> gradients;
  for (size_t i = 0; i < parameters.size(); ++i)
    gradients.emplace_back(fmt::format("the gradient of parameter '{}'", signature_.parameters[i].name),
                           parameters[i].size(), before, shift);
  std::vector<std::span<float>> spans;
  for (size_t i = 0; i < gradients.size(); ++i)
    spans.push_back(i == unwanted ? std::span<float>() : gradients[i].numbers());
  for (size_t sample = 0; sample < inputs.size(); ++sample)
    make_call(sample, true, unread, gradients, [&](CustomOp::Call& made) {
      made.parameter_gradients = spans;
      op_->backward_parameters(made);
    });
  std::vector<Numbers> values;
  for (const Guarded& gradient : gradients) values.push_back(gradient.values());
  return values;
}

void GuardedCalls::expect_finite(const Numbers& numbers, const std::string& what) const {
  for (size_t i = 0; i < numbers.size(); ++i)
    if (!std::isfinite(numbers[i])) fail(fmt::format("element {} of {} is {}", i, what, numbers[i]));
}

void GuardedCalls::expect_same(const Numbers& first, const Numbers& second, const std::string& what,
                               const std::string& why) const {
  for (size_t i = 0; i < first.size(); ++i)
    if (!same_bits(first[i], second[i]))
      fail(fmt::format("{}: element {} of {} is once {} and once {}", why, i, what, first[i], second[i]));
}

}  // namespace lockstep::ops
