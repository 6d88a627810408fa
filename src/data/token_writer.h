#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace lockstep::data {

/// What `lockstep data tokens` does.
struct TokenizeOptions {
  std::vector<std::string> texts;  ///< files, gzip or not; each is a document
  std::string directory;           ///< for tokens_000000.bin, ... and tokenizer.json
  std::string tokenizer;           ///< file; "": one is learned from the texts
  int64_t vocabulary = 8192;       ///< of a tokenizer that is learned
  int64_t shard_tokens = 100'000'000;
  bool marks_documents = true;  ///< <|endoftext|> stands before each document, if the tokenizer has it
  bool overwrite = false;
  int64_t most_inflated_bytes = 0;  ///< that a gzip file may become; 0: any number, as pieces are read
};

struct TokenizeResult {
  int64_t text_bytes = 0, tokens = 0, files = 0, vocabulary = 0;
  double encoding_seconds = 0;
  int token_bytes = 2;
};

/// Encodes texts into files with llm.c's header, of two bytes per token if the vocabulary allows it. Reads
/// texts in pieces. Throws DataError for an empty or damaged text, IoError for files that cannot be read or
/// written, and ConfigError if `directory` has tokens that are not to be replaced.
TokenizeResult tokenize(const TokenizeOptions& options);

}  // namespace lockstep::data
