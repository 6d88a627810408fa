#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::fuzz {

// What each target defines: a parser of bytes from outside, for libFuzzer.

/// Files that the parser accepts, from which others are made by changing them.
std::vector<std::string> seeds();
/// Parses. lockstep::Error says that the bytes were refused, and is what should happen to most. Any other
/// exception, and whatever a sanitizer finds, is a fault of the parser.
void parse(std::string_view bytes);

/// A path under which a file of these bytes is read, until the next call.
const std::string& file_of(std::string_view bytes);

}  // namespace lockstep::fuzz
