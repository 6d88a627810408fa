#pragma once

#include <string>
#include <string_view>

namespace lockstep::observe {

/// A double as a JSON value that reads back as the same bits: shortest exact digits; "nan", "inf" and "-inf"
/// as JSON strings, since JSON has no such numbers.
std::string json_number(double value);
/// A JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

}  // namespace lockstep::observe
