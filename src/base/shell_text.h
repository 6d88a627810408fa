#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A word for a POSIX shell, quoted if necessary.
std::string shell_word(std::string_view word);
std::string shell_line(const std::vector<std::string>& words);

}  // namespace lockstep
