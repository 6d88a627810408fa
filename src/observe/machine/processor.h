#pragma once

#include <optional>
#include <string_view>

namespace lockstep::observe {

/// Processor time of a host since its start, in seconds of all cores together.
struct HostProcessorTime {
  double total = 0, idle = 0;
  double waiting_for_disk = 0;  ///< part of idle
  int cores = 0;                ///< online
};

/// From the text of /proc/stat. `ticks_per_second`: sysconf(_SC_CLK_TCK). Nothing if it is something else.
std::optional<HostProcessorTime> host_processor_time(std::string_view stat, double ticks_per_second);

/// Seconds of processor time that a process has used, in user and kernel mode, with all of its threads. From
/// the text of /proc/self/stat. Nothing if it is something else.
std::optional<double> process_processor_seconds(std::string_view stat, double ticks_per_second);

}  // namespace lockstep::observe
