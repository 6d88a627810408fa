#include "program/text_line.h"

#include <cctype>

#include "lockstep/error.h"

namespace lockstep::program {

TextLine::TextLine(std::string_view text, int number) : text_(text), number_(number) { skip_blanks(); }

void TextLine::fail(const std::string& what) const {
  throw ConfigError(
      fmt::format("program text, line {}: {}, at column {} of: {}", number_, what, at_ + 1, text_));
}

bool TextLine::at_number() const {
  return !at_end() && (std::isdigit(static_cast<unsigned char>(text_[at_])) || text_[at_] == '-');
}

void TextLine::skip_blanks() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
}

bool TextLine::accept(char c) {
  if (at_ >= text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

void TextLine::expect(char c) {
  if (!accept(c)) fail(fmt::format("expected '{}'", c));
}

std::string_view TextLine::word() {
  const size_t begin = at_;
  while (at_ < text_.size() && (std::isalpha(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_'))
    ++at_;
  if (begin == at_) fail("expected a word");
  return text_.substr(begin, at_ - begin);
}

void TextLine::expect_word(std::string_view expected) {
  if (at_end() || word() != expected) fail(fmt::format("expected '{}'", expected));
}

std::string_view TextLine::token() {
  const size_t begin = at_;
  while (!at_end() && text_[at_] != ' ' && text_[at_] != '\t' && text_[at_] != '\r') ++at_;
  return text_.substr(begin, at_ - begin);
}

std::string TextLine::name() {
  std::string result;
  if (!accept('"')) {
    while (at_ < text_.size() && stands_bare(text_[at_])) result += text_[at_++];
    if (result.empty()) fail("expected a name");
    return result;
  }
  while (!accept('"')) {
    const bool escaped = accept('\\');
    if (at_ >= text_.size()) fail("a quoted name has no end");
    result += escaped && text_[at_] == 'n' ? '\n' : text_[at_];
    ++at_;
  }
  return result;
}

}  // namespace lockstep::program
