#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "tokenizer/tokenizer.h"

namespace lockstep::data {

/// A sequence of tokens, in memory or in a file. Immutable; thread-safe.
class TokenSequence {
 public:
  virtual ~TokenSequence() = default;
  virtual int64_t count() const = 0;
  /// Tokens [begin, begin + to.size()). REQUIRES: they are there. Throws DataError if a file has changed.
  virtual void read(int64_t begin, std::span<int32_t> to) const = 0;
  /// Tokens that no sample may hold, ascending.
  virtual const std::vector<int64_t>& damaged() const {
    static const std::vector<int64_t> none;
    return none;
  }
};

/// A part of a sequence that windows lie in.
struct TokenSegment {
  std::shared_ptr<const TokenSequence> sequence;
  int64_t begin = 0, end = 0;
};

struct TokenWindowsOptions {
  std::vector<TokenSegment> segments;
  int64_t context = 0;  ///< tokens in a window
  int64_t stride = 0;   ///< tokens from the beginning of a window to that of the next
  /// Whether the last window of a segment may be filled up with token 0 and label -1. Otherwise tokens that
  /// fill no window are left out.
  bool pads = false;
  int64_t vocabulary = 0;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;  ///< null: not known
  uint64_t identity = 0;                                  ///< of the tokens
  std::string description;                                ///< of the tokens
};

/// Fields "tokens" int32 [context] and "label" int32 [context], the tokens that follow. Windows lie within
/// segments. Those that hold a damaged token are left out, and counted. REQUIRES: others are left.
std::shared_ptr<const Dataset> make_token_windows(TokenWindowsOptions options);

/// Samples that make_token_windows() makes.
int64_t count_token_windows(const TokenWindowsOptions& options);

/// The tokenizer of the model that is evaluated, if `options` has one. Throws DataError if it is damaged.
std::shared_ptr<const tokenizer::Tokenizer> tokenizer_of_model(const DataOptions& options);

}  // namespace lockstep::data
