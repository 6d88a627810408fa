#include "tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include "tokenizer/unicode_ranges.h"

namespace lockstep::tokenizer {
namespace {

constexpr size_t kCodePoints = 0x110000;

/// One byte for each code point: a look-up takes the same time in every script.
class Classes {
 public:
  Classes() : of_(std::make_unique<std::array<CharacterClass, kCodePoints>>()) {
    of_->fill(CharacterClass::other);
    mark(kLetters, CharacterClass::letter);
    mark(kNumbers, CharacterClass::number);
    mark(kSpaces, CharacterClass::space);
  }
  CharacterClass operator[](uint32_t code_point) const { return (*of_)[code_point]; }

 private:
  void mark(std::span<const CodePoints> ranges, CharacterClass kind) {
    for (const auto& [first, last] : ranges) std::fill(of_->begin() + first, of_->begin() + last + 1, kind);
  }
  std::unique_ptr<std::array<CharacterClass, kCodePoints>> of_;
};

const Classes& classes() {
  static const Classes all;
  return all;
}

struct Decoded {
  int bytes;  // 0: not well-formed
  uint32_t code_point;
};

/// RFC 3629: the second byte's limits exclude overlong forms, surrogates, and what lies beyond U+10FFFF.
Decoded decode(const uint8_t* at, size_t left) {
  const uint8_t first = at[0];
  if (first < 0x80) return {1, first};
  const auto continues = [&](size_t i, uint8_t low = 0x80, uint8_t high = 0xbf) {
    return i < left && at[i] >= low && at[i] <= high;
  };
  const auto bits = [&](size_t i) { return uint32_t{at[i]} & 0x3f; };
  if (first >= 0xc2 && first <= 0xdf && continues(1)) return {2, (uint32_t{first} & 0x1f) << 6 | bits(1)};
  if (first >= 0xe0 && first <= 0xef) {
    const uint8_t low = first == 0xe0 ? 0xa0 : 0x80, high = first == 0xed ? 0x9f : 0xbf;
    if (continues(1, low, high) && continues(2))
      return {3, (uint32_t{first} & 0x0f) << 12 | bits(1) << 6 | bits(2)};
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const uint8_t low = first == 0xf0 ? 0x90 : 0x80, high = first == 0xf4 ? 0x8f : 0xbf;
    if (continues(1, low, high) && continues(2) && continues(3))
      return {4, (uint32_t{first} & 0x07) << 18 | bits(1) << 12 | bits(2) << 6 | bits(3)};
  }
  return {0, 0};
}

Decoded decode(std::string_view text, size_t position) {
  return decode(reinterpret_cast<const uint8_t*>(text.data()) + position, text.size() - position);
}

}  // namespace

CharacterClass class_of(uint32_t code_point) { return classes()[code_point]; }

int well_formed_bytes(std::string_view text, size_t position) { return decode(text, position).bytes; }

Character character_at(std::string_view text, size_t position) {
  const Decoded decoded = decode(text, position);
  if (decoded.bytes == 0) return {1, CharacterClass::other};
  return {static_cast<uint8_t>(decoded.bytes), class_of(decoded.code_point)};
}

}  // namespace lockstep::tokenizer
