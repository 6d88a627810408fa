#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// The candidate nearest to `word` in edit distance, or "" if none is near (within a third of the word's
/// length, or one letter in a short word).
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);
/// " (did you mean 'x'?)" for the nearest candidate, or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);
/// Whether all of `text` is as `pattern` says, in which `*` stands for any characters and `?` for one.
bool matches_pattern(std::string_view pattern, std::string_view text);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
/// Splits at every `separator`, trims blanks around each part; "" gives no parts.
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
std::string human_bytes(int64_t bytes);               ///< "1.50 MiB"
std::string human_seconds(double seconds);            ///< "1.5 ms", "12 s": three digits
std::string read_text_file(const std::string& path);  ///< throws IoError naming the path and the reason
/// The shortest decimal text that reads back as the same double; "nan", "inf", "-inf" if it is not finite.
std::string exact(double value);

}  // namespace lockstep
