#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::observe {

/// The text of a file; "" if it cannot be read. Files of /proc come and go with the kernel's options.
std::string text_if_there(const std::string& path);
/// The words of a line.
std::vector<std::string_view> words_of(std::string_view line);
/// Nothing if it is no number.
std::optional<double> number_in(std::string_view word);
/// The number that follows the word `name`, at the beginning of a line: "pswpin 17", "MemTotal: 17 kB".
std::optional<double> number_after(std::string_view text, std::string_view name);

}  // namespace lockstep::observe
