#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::tokenizer {

/// What a regular expression of Unicode 16 takes a code point for: \p{L}, \p{N}, \s, or none of them.
enum class CharacterClass : uint8_t { other, letter, number, space };

/// A character of a text, or a byte that belongs to none.
struct Character {
  uint8_t bytes;  ///< 1 to 4
  CharacterClass kind;
};

/// The character that begins at `position`. A byte that begins no well-formed UTF-8 (overlong forms,
/// surrogates and values beyond U+10FFFF are not) is a character of one byte and of class `other`.
/// REQUIRES: position < text.size().
Character character_at(std::string_view text, size_t position);

/// Bytes of the well-formed character that begins at `position`; 0 if none does.
int well_formed_bytes(std::string_view text, size_t position);

CharacterClass class_of(uint32_t code_point);  ///< REQUIRES: code_point < 0x110000

}  // namespace lockstep::tokenizer
