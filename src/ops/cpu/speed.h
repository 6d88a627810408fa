#pragma once

#include <string>
#include <vector>

namespace lockstep::ops {

/// What one core computes, in floating-point operations per second; a multiply-add counts as two.
struct ArithmeticSpeed {
  std::string instruction_set;  ///< that our loops use here
  double peak = 0;              ///< fused multiply-adds in registers: more is not to be had
  double products = 0;          ///< forward of a linear op, 256 x 256 x 256
  double attention = 0;         ///< forward and backward of a head of 64, 256 positions
  bool operator==(const ArithmeticSpeed&) const = default;
};

/// The best of what about `seconds` show; the three take turns, so that whatever else the processor does
/// slows all of them.
ArithmeticSpeed measure_arithmetic(double seconds);

/// "AVX-512, at most 128 GFLOP/s of a core: products reach 90 %, attention 55 %"
std::string to_text(const ArithmeticSpeed& speed);

/// Those that do not reach half of the peak, by name.
std::vector<std::string> below_half(const ArithmeticSpeed& speed);

}  // namespace lockstep::ops
