#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::data {

/// How files say where tokens are: llm.c's header, or nothing but tokens.
enum class TokenFormat { automatic, llmc, uint16, uint32 };

/// Options of the kind `tokens`.
struct TokenOptions {
  std::vector<std::string> files;       ///< names or patterns
  std::vector<std::string> eval_files;  ///< of these, or further ones: they evaluate
  std::string eval_list;                ///< a file that lists such files; "": none
  double eval_fraction = 0;             ///< share to evaluate on, drawn in passages
  uint64_t split_seed = 1;              ///< decides which
  TokenFormat format = TokenFormat::automatic;
  int64_t context = 0;     ///< tokens per sample
  int64_t stride = 0;      ///< tokens between beginnings of training samples; 0: as many as `context`
  int64_t vocabulary = 0;  ///< tokens lie below; 0: that of the tokenizer, or the largest token + 1
  std::string tokenizer;   ///< file; "": tokenizer.json beside the first file, if there is one
  bool operator==(const TokenOptions&) const = default;
};

}  // namespace lockstep::data
