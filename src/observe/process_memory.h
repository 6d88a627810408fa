#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::observe {

/// The most resident memory that this process ever had.
int64_t process_peak_memory_bytes();
/// Its resident memory now.
int64_t process_memory_bytes();
/// The private part of it: no code, and nothing shared with other processes.
int64_t process_private_bytes();

/// A size such as "VmHWM" from the text of /proc/self/status, in bytes; -1 if it is not there.
int64_t status_field_bytes(std::string_view status, std::string_view field);

}  // namespace lockstep::observe
