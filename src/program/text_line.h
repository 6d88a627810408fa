#pragma once

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace lockstep::program {

/// Whether a character of a name needs no quotes; a name with other characters is quoted.
inline bool stands_bare(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '/' || c == '-';
}

/// One line of a program's text and a position in it. All functions move past what they read. If something
/// else is at the position, all functions except `at_end`, `at_number` and `accept` throw ConfigError, which
/// quotes the line.
class TextLine {
 public:
  TextLine(std::string_view text, int number);

  [[noreturn]] void fail(const std::string& what) const;
  bool at_end() const { return at_ >= text_.size() || text_[at_] == '#'; }
  bool at_number() const;
  void skip_blanks();
  bool accept(char c);
  void expect(char c);
  /// A key word: letters and underscores.
  std::string_view word();
  void expect_word(std::string_view expected);
  std::string name();
  /// What stands before the next blank.
  std::string_view token();
  template <class Integer = int>
  Integer number() {
    Integer value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc()) fail("expected a number");
    at_ = static_cast<size_t>(end - text_.data());
    return value;
  }
  /// KEY=NUMBER
  template <class Integer = int>
  Integer field(std::string_view key) {
    expect_word(key);
    expect('=');
    const Integer value = number<Integer>();
    skip_blanks();
    return value;
  }
  /// One of the values of an enumeration, found by its name; `count` of them.
  template <class Enum>
  Enum one_of(int count, std::string_view what) {
    return choose<Enum>(name(), count, what);
  }
  template <class Enum>
  Enum choose(const std::string& found, int count, std::string_view what) const {
    std::vector<std::string> known;
    for (int i = 0; i < count; ++i) {
      known.emplace_back(name_of(static_cast<Enum>(i)));
      if (known.back() == found) return static_cast<Enum>(i);
    }
    fail(fmt::format("unknown {} '{}'{}; known are {}", what, found, did_you_mean(found, known),
                     join(known, ", ")));
  }

 private:
  std::string_view text_;
  int number_;  ///< from 1, in the whole text
  size_t at_ = 0;
};

}  // namespace lockstep::program
