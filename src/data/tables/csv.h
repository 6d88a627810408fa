#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// Of a table. Names and cells take some hundred bytes for each column, while a file may need one byte.
inline constexpr int64_t kMostColumns = int64_t{1} << 20;

/// A record of a CSV file.
struct CsvRow {
  std::vector<std::string> cells;
  int64_t line = 0;     ///< on which it begins, from 1
  int64_t byte = 0;     ///< at which it begins
  std::string problem;  ///< what is damaged; "": nothing
};

/// Reads RFC 4180: cells in quotes may hold separators, line breaks and doubled quotes. Lines end with LF or
/// CRLF; empty ones are passed over, as is a byte order mark. Borrows the text. Not thread-safe.
class CsvReader {
 public:
  CsvReader(std::string_view text, char separator);
  /// False at the end. Of a damaged row, `problem` is set, and the next row is read all the same.
  bool next(CsvRow& row);

 private:
  void read_quoted(CsvRow& row, std::string& cell);
  void read_plain(CsvRow& row, std::string& cell);
  bool at_line_end() const;
  void skip_line_end();

  std::string_view text_;
  char separator_;
  size_t position_ = 0;
  int64_t line_ = 1;
};

/// "" if all of `text` is UTF-8; otherwise which byte is not.
std::string utf8_problem(std::string_view text);

}  // namespace lockstep::data
