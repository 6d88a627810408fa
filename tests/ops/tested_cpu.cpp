#include "ops/op_testing.h"

namespace lockstep::testing {

device::DeviceKind tested_device() { return device::DeviceKind::cpu; }

}  // namespace lockstep::testing
