#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace lockstep::tokenizer {

/// Encodes many texts, and remembers words, which texts repeat. Not thread-safe: one for each thread. Borrows
/// the tokenizer.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);
  /// Appends the tokens of `text`. Throws DataError, which names the first byte that is no token, and its
  /// position in the text.
  void encode(std::string_view text, std::vector<int32_t>& tokens);

 private:
  static constexpr size_t kLongestWord = 23, kMostTokens = 9;
  /// A word and its tokens: a line of the processor's cache.
  struct Known {
    uint8_t length = 0;  // 0: nothing
    char bytes[kLongestWord];
    uint32_t count;
    int32_t tokens[kMostTokens];
  };
  static_assert(sizeof(Known) == 64);

  void encode_bytes(std::string_view bytes, size_t position, std::vector<int32_t>& tokens);
  void tokenize(std::string_view word, size_t position);
  void encode_word(std::string_view word, size_t position, std::vector<int32_t>& tokens);

  const Tokenizer& tokenizer_;
  std::vector<Known> known_;   // by hash; a new word takes the place of an old one
  std::vector<int32_t> word_;  // of encode_word
};

}  // namespace lockstep::tokenizer
