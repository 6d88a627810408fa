#include "lockstep/error.h"
#include "pixels/expand.h"

namespace lockstep::pixels {

void expand_on_gpu(const ExpandCall& /*call*/, device::Stream& /*stream*/) {
  throw DeviceError("this build of lockstep has no GPU backend; use --device cpu");
}

}  // namespace lockstep::pixels
