#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "data/token_windows.h"

namespace lockstep::data {

/// A text as tokens, and where training ends and validation begins.
struct TokenizedText : TokenSequence {
  std::string path;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::variant<std::vector<uint8_t>, std::vector<int32_t>> tokens;  ///< bytes suffice for characters
  int64_t train_count = 0;  ///< the first tokens train, the rest evaluates

  int64_t count() const override;
  void read(int64_t begin, std::span<int32_t> to) const override;
};

/// Reads a text, gzip or not. Its tokens are its bytes (Tokenizer::of_characters), so that both parts agree,
/// or those of `tokenizer`, if there is one; then nothing trains. Throws ConfigError unless 0 <=
/// train_fraction <= 1. Throws DataError if the file is empty, or if its evaluation part has characters that
/// the tokenizer lacks, and for gzip data that becomes more than `most_inflated` (see ByteSource).
std::shared_ptr<const TokenizedText> read_text(
    const std::string& path, double train_fraction,
    std::shared_ptr<const tokenizer::Tokenizer> tokenizer = nullptr, int64_t most_inflated = 0);

/// The first few of the characters in `found` that are not in `known`: "new are 0x09, '#'".
std::string describe_new(const std::string& known, const std::string& found);

/// Training samples are the windows that begin at every token. Evaluation samples do not overlap and score
/// every token but the first exactly once; the last sample is padded with token 0 and label -1.
DatasetPair open_text_datasets(const DataOptions& options);

}  // namespace lockstep::data
