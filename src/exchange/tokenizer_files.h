#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/manifest.h"
#include "tokenizer/tokenizer.h"

namespace lockstep::exchange {

/// What a checkpoint's tokens stand for; nothing if it does not say, or if its samples are no tokens.
std::optional<tokenizer::Tokenizer> tokenizer_of(const checkpoint::Manifest& manifest);

/// The files, by name, from which transformers' AutoTokenizer makes the same tokenizer: tokenizer.json,
/// tokenizer_config.json, special_tokens_map.json. `context`: the most tokens that the model sees.
std::map<std::string, std::string> tokenizer_files(const tokenizer::Tokenizer& tokenizer, int64_t context);

}  // namespace lockstep::exchange
