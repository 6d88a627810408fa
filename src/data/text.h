#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace lockstep::data {

/// The characters of a text: its sorted set of bytes. Token k is the k-th of them.
class Vocabulary {
 public:
  explicit Vocabulary(std::span<const uint8_t> text);
  int64_t size() const { return static_cast<int64_t>(characters_.size()); }
  const std::string& characters() const { return characters_; }
  /// Throws DataError, which names the first character that the vocabulary lacks.
  std::vector<int32_t> encode(std::string_view text) const;
  /// Throws DataError if a token is outside [0, size()).
  std::string decode(std::span<const int32_t> tokens) const;
  int token_of(uint8_t character) const { return token_[character]; }  ///< -1 if it is not one of them

 private:
  std::string characters_;
  std::array<int16_t, 256> token_{};
};

/// The first few of the unknown characters: "new are 0x09, '#'".
std::string describe_new(const std::string& known, const std::string& found);

/// A text as tokens, and where training ends and validation begins.
struct TokenizedText {
  std::string path;
  Vocabulary vocabulary;
  std::vector<uint8_t> tokens;
  int64_t train_count;  ///< the first tokens train, the rest evaluates
};
/// Reads a file of characters, gzip or not. The vocabulary is that of the whole file, so that both parts
/// agree, or `characters`, if given; then nothing trains. Throws ConfigError unless 0 <= train_fraction <= 1.
/// Throws DataError if the file is empty, or if its evaluation part has characters that the vocabulary lacks.
std::shared_ptr<const TokenizedText> read_text(const std::string& path, double train_fraction,
                                               const std::string& characters = "");

/// Fields "tokens" int32 [context] and "label" int32 [context], the tokens that follow. Training samples are
/// the windows that begin at every token. Evaluation samples do not overlap and score every token but the
/// first exactly once; the last sample is padded with token 0 and label -1.
DatasetPair open_text_datasets(const DataOptions& options);

}  // namespace lockstep::data
