#pragma once

#include <string>
#include <vector>

namespace lockstep::charts {

/// A self-contained page without scripts, for light and dark backgrounds, narrow screens and paper: what
/// comes before its contents, and after. `title`: text.
std::string page_begin(const std::string& title);
std::string page_end();

/// A table of texts, of which columns from `words` on hold words, the others numbers. On narrow screens each
/// row is a list of its columns.
std::string html_table(const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows, size_t words);

/// A chart that can be moved sideways if the screen is too narrow; "" stays "".
std::string html_chart(const std::string& svg);

}  // namespace lockstep::charts
