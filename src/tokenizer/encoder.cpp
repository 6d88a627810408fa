#include "tokenizer/encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "lockstep/error.h"
#include "tokenizer/words.h"

namespace lockstep::tokenizer {
namespace {

// 2 MiB: a second-level cache holds most of what is used.
constexpr size_t kKnownWords = 1 << 15;

}  // namespace

Encoder::Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

void Encoder::encode(std::string_view text, std::vector<int32_t>& tokens) {
  if (!tokenizer_.parts().divides_words) {
    tokenize(text, 0);
    tokens.insert(tokens.end(), word_.begin(), word_.end());
    return;
  }
  if (known_.empty()) known_.resize(kKnownWords);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = word_end(text, begin);
    encode_word(text.substr(begin, end - begin), begin, tokens);
    begin = end;
  }
}

/// Makes `word_` the tokens of a word.
void Encoder::tokenize(std::string_view word, size_t position) {
  if (const auto token = tokenizer_.token_of_word(word)) {
    word_.assign(1, *token);
    return;
  }
  encode_bytes(word, position, word_);
  tokenizer_.merges().apply(word_);
}

/// Replaces `tokens` by one for each byte.
void Encoder::encode_bytes(std::string_view bytes, size_t position, std::vector<int32_t>& tokens) {
  tokens.resize(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    tokens[i] = tokenizer_.token_of(static_cast<uint8_t>(bytes[i]));
    if (tokens[i] < 0)
      throw DataError(fmt::format("expected one of the tokenizer's {}, found byte 0x{:02x} at position {}",
                                  tokenizer_.description(), static_cast<uint8_t>(bytes[i]), position + i));
  }
}

void Encoder::encode_word(std::string_view word, size_t position, std::vector<int32_t>& tokens) {
  const bool fits = word.size() <= kLongestWord;
  Known* known = fits ? &known_[hash64(word) % kKnownWords] : nullptr;
  if (fits && known->length == word.size() && std::memcmp(known->bytes, word.data(), word.size()) == 0) {
    tokens.insert(tokens.end(), known->tokens, known->tokens + known->count);
    return;
  }
  tokenize(word, position);
  tokens.insert(tokens.end(), word_.begin(), word_.end());
  if (!fits || word_.size() > kMostTokens) return;
  known->length = static_cast<uint8_t>(word.size());
  std::memcpy(known->bytes, word.data(), word.size());
  known->count = static_cast<uint32_t>(word_.size());
  std::ranges::copy(word_, known->tokens);
}

}  // namespace lockstep::tokenizer
