#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "config/schema.h"

namespace lockstep::config {
namespace {

constexpr std::array<std::string_view, 9> kTypographicQuotes{"“", "”", "„", "‟", "‘", "’", "‚", "«", "»"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Behind a text in plain quotes, or a comment, that begins at `at`; `at` where none does.
size_t behind_quoted(std::string_view text, size_t at) {
  const char quote = text[at];
  if (quote == '#') return std::min(text.find('\n', at), text.size());
  if (quote != '"' && quote != '\'') return at;
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\')
      ++i;
    else if (text[i] == quote || text[i] == '\n')
      return i + 1;
  }
  return text.size();
}

std::string slip_at(std::string_view text, size_t at, int brackets) {
  for (const auto quote : kTypographicQuotes)
    if (text.substr(at).starts_with(quote))
      return std::string(quote) + " is a typographic quotation mark; write a plain one: \"";
  const bool between_digits =
      at > 0 && at + 1 < text.size() && is_digit(text[at - 1]) && is_digit(text[at + 1]);
  if (text[at] == ',' && brackets == 0 && between_digits)
    return "a number has a point, not a comma, as in 0.05; write a list in []";
  return "";
}

}  // namespace

std::optional<TypingSlip> find_typing_slip(std::string_view text) {
  int brackets = 0, line = 0;
  size_t line_begin = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (const size_t behind = behind_quoted(text, at); behind > at) at = behind - 1;
    if (text[at] == '\n') {
      ++line;
      line_begin = at + 1;
    }
    brackets += (text[at] == '[' ? 1 : 0) - (text[at] == ']' ? 1 : 0);
    if (std::string message = slip_at(text, at, brackets); !message.empty())
      return TypingSlip{line, static_cast<int>(at - line_begin), std::move(message)};
  }
  return std::nullopt;
}

}  // namespace lockstep::config
