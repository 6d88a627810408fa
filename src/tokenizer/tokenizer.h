#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/merges.h"

namespace lockstep::tokenizer {

/// The name of the file that a tokenizer is kept in, beside tokens and in checkpoints.
inline constexpr std::string_view kTokenizerFile = "tokenizer.json";
inline constexpr std::string_view kEndOfText = "<|endoftext|>";
inline constexpr int64_t kMostTokens = 1 << 24;

/// What a tokenizer consists of.
struct TokenizerParts {
  std::vector<std::string> tokens = {};  ///< the bytes of each; of a special token its name
  std::vector<int32_t> special = {};     ///< tokens that no text is encoded as, ascending
  std::vector<Merge> merges = {};        ///< in their order
  bool divides_words = false;            ///< by GPT-2's rule (word_end); merges stay within words
  bool ignore_merges = false;            ///< a word that is a token is that token, whatever merges make of it
  bool operator==(const TokenizerParts&) const = default;
};

/// Text as tokens, by byte-level byte-pair encoding, and back. Characters are the same without merges: then
/// the tokens are those bytes that a text has. Special tokens are never found in texts, which anybody may
/// have written; decoding gives their names. Immutable; thread-safe.
class Tokenizer {
 public:
  /// Throws DataError if parts contradict each other: a byte that is two tokens, a merge of tokens that do
  /// not exist, or whose result is not the bytes of both.
  explicit Tokenizer(TokenizerParts parts);
  /// Token k is the k-th of the different bytes of `text`, ascending.
  static Tokenizer of_characters(std::string_view text);

  int64_t size() const { return static_cast<int64_t>(parts_.tokens.size()); }
  const TokenizerParts& parts() const { return parts_; }
  /// Whether each token is one byte.
  bool is_of_characters() const { return is_of_characters_; }
  std::string characters() const;  ///< all tokens' bytes, in order
  std::optional<int32_t> end_of_text() const { return end_of_text_; }
  int32_t token_of(uint8_t byte) const { return token_of_byte_[byte]; }  ///< -1 if it is none
  const MergeTable& merges() const { return merges_; }
  /// The token that a word is by itself; nothing if it is none, or if merges decide (ignore_merges).
  std::optional<int32_t> token_of_word(std::string_view word) const;

  /// Throws DataError, which names the first byte that is no token, and its position.
  std::vector<int32_t> encode(std::string_view text) const;
  /// Throws DataError if a token is outside [0, size()).
  std::string decode(std::span<const int32_t> tokens) const;

  /// Of everything that decides how texts are encoded.
  uint64_t identity() const { return identity_; }
  std::string description() const;  ///< "8192 byte pairs", "65 characters"
  bool operator==(const Tokenizer& other) const { return parts_ == other.parts_; }

 private:
  void find_bytes();
  void check_merges() const;

  TokenizerParts parts_;
  MergeTable merges_;
  std::array<int32_t, 256> token_of_byte_{};
  std::map<std::string, int32_t, std::less<>> token_of_word_;  // if merges are ignored
  std::optional<int32_t> end_of_text_;
  bool is_of_characters_ = false;
  uint64_t identity_ = 0;
};

/// The order in which GPT-2 numbers single bytes: printable ones first.
std::array<uint8_t, 256> bytes_in_gpt2_order();

}  // namespace lockstep::tokenizer
