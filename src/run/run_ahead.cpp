#include "run/run_ahead.h"

#include "base/ensure.h"
#include "base/index.h"

namespace lockstep::run {

RunAhead::RunAhead(device::Device& device, device::Stream& stream, int most)
    : stream_(stream), pieces_per_part_(most / kParts) {
  ensure(most >= kParts, "the host must be allowed to be ahead of its device");
  for (auto& end : ends_) end = device.create_event();
}

void RunAhead::begin() { pieces_ = parts_ = 0; }

void RunAhead::given(const Wait& wait) {
  if (++pieces_ < pieces_per_part_) return;
  pieces_ = 0;
  stream_.record(*nth(ends_, parts_ % kParts));
  ++parts_;
  // Room for one part more: all but the last parts are done.
  if (parts_ >= kParts) wait(stream_, *nth(ends_, parts_ % kParts));
}

}  // namespace lockstep::run
