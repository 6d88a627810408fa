#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::plan {

/// What a rank's plan may take of a GPU with so many bytes, which is its alone: all but 2 % and 512 MiB.
/// Those are for the driver's context and for libraries, whose memory no plan knows; an allowance, not a
/// measurement.
int64_t bytes_for_plans(int64_t gpu_bytes);

/// The memory that vendors state for a GPU ("80 GB" as 80 * 10^9 bytes), by a name such as "H100" or
/// "A100-40GB", in any case; nothing for others.
std::optional<int64_t> memory_of_gpu(std::string_view name);
/// All names.
std::vector<std::string> names_of_gpus();

}  // namespace lockstep::plan
