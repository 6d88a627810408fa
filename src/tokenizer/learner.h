#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tokenizer/tokenizer.h"

namespace lockstep::tokenizer {

/// Learns byte pairs from texts: again and again, the pair of tokens that is most frequent within words
/// becomes a token; of equally frequent ones that whose tokens come first. Not thread-safe.
class Learner {
 public:
  /// Counts the words of a text. It may be a part of a longer one, divided where words begin (last_division).
  void read(std::string_view text);
  /// A tokenizer of 256 bytes, merges, and <|endoftext|>, together `vocabulary` tokens; fewer if no pair is
  /// left that occurs twice. Throws ConfigError if `vocabulary` is below 257 or above kMostTokens.
  Tokenizer learn(int64_t vocabulary) const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> count_of_;  // by word
};

}  // namespace lockstep::tokenizer
