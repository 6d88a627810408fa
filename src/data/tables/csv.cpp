#include "data/tables/csv.h"

#include <fmt/format.h>

#include <iterator>

#include "tokenizer/unicode.h"

namespace lockstep::data {

CsvReader::CsvReader(std::string_view text, char separator) : text_(text), separator_(separator) {
  if (text_.starts_with("\xef\xbb\xbf")) position_ = 3;
}

bool CsvReader::at_line_end() const {
  return position_ >= text_.size() || text_[position_] == '\n' || text_.substr(position_, 2) == "\r\n";
}

void CsvReader::skip_line_end() {
  if (position_ >= text_.size()) return;
  position_ += text_[position_] == '\r' ? 2 : 1;
  ++line_;
}

bool CsvReader::next(CsvRow& row) {
  while (position_ < text_.size() && at_line_end()) skip_line_end();
  if (position_ >= text_.size()) return false;
  row.cells.clear();
  row.problem.clear();
  row.line = line_;
  row.byte = static_cast<int64_t>(position_);
  for (;;) {
    std::string& cell = row.cells.emplace_back();
    if (position_ < text_.size() && text_[position_] == '"')
      read_quoted(row, cell);
    else
      read_plain(row, cell);
    if (row.problem.empty())
      if (const std::string problem = utf8_problem(cell); !problem.empty())
        row.problem = fmt::format("cell {} is no UTF-8: {}", row.cells.size(), problem);
    if (at_line_end()) break;
    if (std::ssize(row.cells) == kMostColumns) {
      row.problem = fmt::format("it has more than {} cells", kMostColumns);
      while (!at_line_end()) ++position_;
      break;
    }
    ++position_;  // the separator
  }
  skip_line_end();
  return true;
}

void CsvReader::read_plain(CsvRow&, std::string& cell) {
  const size_t begin = position_;
  while (!at_line_end() && text_[position_] != separator_) ++position_;
  cell = text_.substr(begin, position_ - begin);
}

void CsvReader::read_quoted(CsvRow& row, std::string& cell) {
  const size_t opening = position_++;
  const int64_t line = line_;
  // A quote that does not belong there costs its line, not all that follow up to the next quote.
  const auto give_up = [&](std::string problem) {
    row.problem = std::move(problem);
    cell.clear();
    position_ = opening;
    line_ = line;
    while (!at_line_end()) ++position_;
  };
  for (; position_ < text_.size(); ++position_) {
    const char c = text_[position_];
    if (c == '\n') ++line_;
    if (c != '"') {
      cell.push_back(c);
      continue;
    }
    if (position_ + 1 < text_.size() && text_[position_ + 1] == '"') {
      cell.push_back('"');
      ++position_;
      continue;
    }
    ++position_;  // the closing quote
    if (at_line_end() || text_[position_] == separator_) return;
    return give_up(fmt::format("a quote that opens at byte {} closes at byte {}, before the cell's end",
                               opening, position_ - 1));
  }
  give_up(fmt::format("a quote that opens at byte {} is never closed", opening));
}

std::string utf8_problem(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const int bytes = tokenizer::well_formed_bytes(text, at);
    if (bytes == 0) return fmt::format("0x{:02x} at its byte {}", static_cast<unsigned char>(text[at]), at);
    at += static_cast<size_t>(bytes);
  }
  return "";
}

}  // namespace lockstep::data
