#pragma once

#include <optional>
#include <string_view>

namespace lockstep::observe {

/// Seconds since the host's start in which tasks stood still for want of something.
struct StalledSeconds {
  std::optional<double> some, full;  ///< at least one task; all of them
};
/// From the text of a file of /proc/pressure; nothing in it if the kernel does not measure it.
StalledSeconds stalled_seconds(std::string_view pressure);

}  // namespace lockstep::observe
