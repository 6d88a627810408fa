#include "observe/machine/memory.h"

#include "observe/machine/text_numbers.h"

namespace lockstep::observe {

HostMemory host_memory(std::string_view meminfo) {
  const auto bytes = [&](std::string_view name) {
    const auto kibibytes = number_after(meminfo, name);
    return kibibytes ? std::optional(*kibibytes * 1024) : std::nullopt;
  };
  HostMemory memory{bytes("MemTotal:"), bytes("MemAvailable:"), {}};
  const auto swap = bytes("SwapTotal:"), free = bytes("SwapFree:");
  if (swap && free) memory.swap_used_bytes = *swap - *free;
  return memory;
}

std::optional<double> swapped_bytes(std::string_view vmstat, double page_bytes) {
  const auto in = number_after(vmstat, "pswpin"), out = number_after(vmstat, "pswpout");
  return in && out ? std::optional((*in + *out) * page_bytes) : std::nullopt;
}

}  // namespace lockstep::observe
