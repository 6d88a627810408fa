#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.h"

namespace lockstep::tokenizer {

/// The text of tokenizer.json, as Hugging Face's `tokenizers` writes and reads it: model BPE, pre-tokenizer
/// ByteLevel.
std::string to_json(const Tokenizer& tokenizer);
/// Throws DataError, which begins with `name`, for what is not such a file, or asks for more than bytes,
/// GPT-2's words and merges.
Tokenizer tokenizer_from_json(std::string_view text, const std::string& name);

/// The tokenizer among `encodings`, which a data set or a checkpoint has: texts of files, by name. Nothing if
/// there is none. `where`: the folder of the files, for errors.
std::optional<Tokenizer> tokenizer_among(const std::map<std::string, std::string>& encodings,
                                         const std::string& where);

/// Reads merges alone, as GPT-2's vocab.bpe and Hugging Face's merges.txt have them: tokens are the 256 bytes
/// in GPT-2's order, then one for each merge, then <|endoftext|>. Throws DataError, which names the line.
Tokenizer tokenizer_from_merges(std::string_view text, const std::string& name);

/// Reads a file of either kind. Throws IoError if it cannot be read.
Tokenizer read_tokenizer(const std::string& path);

}  // namespace lockstep::tokenizer
