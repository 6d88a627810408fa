#include "doctor/arithmetic.h"

#include <fmt/format.h>

#include "base/text.h"

namespace lockstep::doctor {

Finding judge_arithmetic_speed(const ops::ArithmeticSpeed& speed) {
  const std::vector<std::string> slow = ops::below_half(speed);
  if (slow.empty()) return {Level::ok, ops::to_text(speed)};
  return {Level::warn, fmt::format("{}; below half: {}", ops::to_text(speed), join(slow, ", ")),
          "lockstep bench, while nothing else runs"};
}

std::vector<Finding> look_at_arithmetic_speed(const Request&) {
  constexpr double kSeconds = 0.1;
  return {judge_arithmetic_speed(ops::measure_arithmetic(kSeconds))};
}

}  // namespace lockstep::doctor
