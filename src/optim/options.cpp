#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "lockstep/error.h"
#include "optim/optimizer.h"

namespace lockstep::optim {
namespace {

void expect(bool condition, std::string_view field, std::string_view expected, double found) {
  if (!condition) throw ConfigError(fmt::format("{} must be {}, is {}", field, expected, found));
}

void expect_not_negative(std::string_view field, double value) {
  expect(std::isfinite(value) && value >= 0, field, "a finite number that is not negative", value);
}

void expect_fraction(std::string_view field, double value) {
  expect(value >= 0 && value < 1, field, "in [0, 1)", value);  // so written that NaN is refused
}

}  // namespace

void validate(const OptimizerOptions& options) {
  expect_not_negative("optimizer.learning_rate", options.learning_rate);
  expect_not_negative("optimizer.weight_decay", options.weight_decay);
  if (options.kind == OptimizerKind::sgd) {
    expect_fraction("optimizer.momentum", options.momentum);
    if (options.nesterov && options.momentum == 0)
      throw ConfigError(
          "optimizer.nesterov needs optimizer.momentum above 0; set it, for example to 0.9, or leave "
          "nesterov out");
    return;
  }
  expect(options.momentum == 0, "optimizer.momentum", "0 with adam and adamw, which use beta1",
         options.momentum);
  if (options.nesterov)
    throw ConfigError("optimizer.nesterov is for sgd only; leave it out with adam and adamw");
  expect_fraction("optimizer.beta1", options.beta1);
  expect_fraction("optimizer.beta2", options.beta2);
  expect(std::isfinite(options.epsilon) && options.epsilon > 0, "optimizer.epsilon",
         "a finite number above 0", options.epsilon);
}

int state_slots(const OptimizerOptions& options) {
  if (options.kind == OptimizerKind::sgd) return options.momentum != 0 ? 1 : 0;
  return 2;
}

std::string_view state_slot_name(const OptimizerOptions& options, int slot) {
  ensure(slot >= 0 && slot < state_slots(options), "the optimizer has no such state slot");
  if (options.kind == OptimizerKind::sgd) return "momentum";
  return slot == 0 ? "exp_avg" : "exp_avg_sq";
}

}  // namespace lockstep::optim
