#pragma once

#include <optional>
#include <string_view>

namespace lockstep::observe {

/// Memory of a host, in bytes. What the kernel does not state is absent.
struct HostMemory {
  std::optional<double> size_bytes, available_bytes, swap_used_bytes;
};
/// From the text of /proc/meminfo.
HostMemory host_memory(std::string_view meminfo);
/// Bytes swapped in and out since the host's start, from the text of /proc/vmstat, which counts pages.
std::optional<double> swapped_bytes(std::string_view vmstat, double page_bytes);

}  // namespace lockstep::observe
