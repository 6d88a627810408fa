#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace lockstep::ops {

/// Divides by a number in [1, 2^31) that is known at launch, by one multiplication in place of the twenty
/// instructions of a division: exact for dividends below 2^31 (Granlund and Montgomery, 1994).
class Divisor {
 public:
  explicit Divisor(uint32_t divisor)
      : divisor_(divisor),
        shift_(31 + std::bit_width(divisor - 1)),
        multiplier_(static_cast<uint32_t>((uint64_t{1} << shift_) / divisor + 1)) {}

  LOCKSTEP_HOST_DEVICE uint32_t quotient(uint32_t dividend) const {
    return static_cast<uint32_t>(uint64_t{dividend} * multiplier_ >> shift_);
  }
  LOCKSTEP_HOST_DEVICE uint32_t remainder(uint32_t dividend, uint32_t quotient) const {
    return dividend - quotient * divisor_;
  }

 private:
  uint32_t divisor_;
  int shift_;
  uint32_t multiplier_;
};

}  // namespace lockstep::ops
