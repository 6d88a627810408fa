#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

/// A write that would make a file larger than the process may (`ulimit -f`) fails by EFBIG, in place of
/// SIGXFSZ, which ends the process.
void survive_file_size_limit();

/// Bytes; none: files may have any size.
std::optional<int64_t> file_size_limit();

/// What to do about EFBIG.
std::string file_size_advice();

}  // namespace lockstep
