#include "tokenizer/words.h"

#include "tokenizer/unicode.h"

namespace lockstep::tokenizer {
namespace {

/// The end of the characters of class `kind` from `position` on.
size_t run_end(std::string_view text, size_t position, CharacterClass kind) {
  while (position < text.size()) {
    const Character next = character_at(text, position);
    if (next.kind != kind) break;
    position += next.bytes;
  }
  return position;
}

/// The end of 's, 't, 're, 've, 'm, 'll or 'd at `begin`, if there is an apostrophe; 0 if there is none.
size_t contraction_end(std::string_view text, size_t begin) {
  const std::string_view rest = text.substr(begin + 1, 2);
  for (const std::string_view one : {"s", "t", "m", "d"})
    if (rest.starts_with(one)) return begin + 2;
  for (const std::string_view two : {"re", "ve", "ll"})
    if (rest == two) return begin + 3;
  return 0;
}

/// White space up to its last character, which belongs to what follows; all of it if nothing follows, or if
/// there is only one.
size_t space_end(std::string_view text, size_t begin) {
  size_t position = begin, last = begin;
  while (position < text.size()) {
    const Character next = character_at(text, position);
    if (next.kind != CharacterClass::space) return last == begin ? position : last;
    last = position;
    position += next.bytes;
  }
  return position;
}

/// Where the character before `position` begins. REQUIRES: position > 0.
size_t character_before(std::string_view text, size_t position) {
  for (size_t bytes = 2; bytes <= 4 && bytes <= position; ++bytes)
    if (static_cast<size_t>(well_formed_bytes(text, position - bytes)) == bytes) return position - bytes;
  return position - 1;
}

}  // namespace

size_t word_end(std::string_view text, size_t begin) {
  if (text[begin] == '\'')
    if (const size_t end = contraction_end(text, begin)) return end;
  const Character first = character_at(text, begin);
  if (first.kind != CharacterClass::space) return run_end(text, begin + first.bytes, first.kind);
  if (text[begin] == ' ' && begin + 1 < text.size()) {
    const Character second = character_at(text, begin + 1);
    if (second.kind != CharacterClass::space) return run_end(text, begin + 1 + second.bytes, second.kind);
  }
  return space_end(text, begin);
}

size_t last_division(std::string_view text) {
  // No word goes on from something else into white space. Where that is one byte, nothing that follows can
  // change what stands before it.
  for (size_t position = text.size(); position-- > 1;) {
    const Character here = character_at(text, position);
    if (here.kind != CharacterClass::space || static_cast<unsigned char>(text[position]) >= 0x80) continue;
    if (character_at(text, character_before(text, position)).kind != CharacterClass::space) return position;
  }
  return 0;
}

}  // namespace lockstep::tokenizer
