#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

/// Makes a write beyond the process's limit of file size (`ulimit -f`) fail by EFBIG. Otherwise SIGXFSZ would
/// end the process.
void survive_file_size_limit();

/// Bytes; none: files may have any size.
std::optional<int64_t> file_size_limit();

/// What to do about EFBIG.
std::string file_size_advice();

}  // namespace lockstep
