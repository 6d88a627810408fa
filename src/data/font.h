#pragma once

#include <array>
#include <cstdint>

namespace lockstep::data {

inline constexpr int kLetterWidth = 5, kLetterHeight = 7;  ///< pixels

/// A letter column by column, the top row in the lowest bit. ASCII; anything else is a box.
std::array<uint8_t, kLetterWidth> letter_columns(char letter);

}  // namespace lockstep::data
