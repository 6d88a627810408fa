#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep::tokenizer {

/// The end of the word that begins at `begin`. GPT-2's rule, by which merges never cross the ends of words:
///
///     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
///
/// A byte that is no UTF-8 counts as a character that is neither letter, number nor white space.
/// REQUIRES: begin < text.size(), and a word begins there.
size_t word_end(std::string_view text, size_t begin);

/// The last position in (0, text.size()) at which a word begins whatever follows the text, so that what lies
/// before and after it can be divided apart; 0 if there is none.
size_t last_division(std::string_view text);

}  // namespace lockstep::tokenizer
