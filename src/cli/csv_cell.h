#pragma once

#include <string>

namespace lockstep::cli {

/// A text as a cell of a CSV file: quoted if it has a comma, a quote or a line break (RFC 4180).
std::string csv_cell(const std::string& text);

}  // namespace lockstep::cli
