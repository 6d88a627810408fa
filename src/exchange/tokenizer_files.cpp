#include "exchange/tokenizer_files.h"

#include <nlohmann/json.hpp>

#include "tokenizer/tokenizer_file.h"

namespace lockstep::exchange {

std::optional<tokenizer::Tokenizer> tokenizer_of(const checkpoint::Manifest& manifest) {
  const auto found = manifest.encodings.find(std::string(tokenizer::kTokenizerFile));
  if (found == manifest.encodings.end()) return std::nullopt;
  return tokenizer::tokenizer_from_json(found->second, found->first);
}

std::map<std::string, std::string> tokenizer_files(const tokenizer::Tokenizer& tokenizer, int64_t context) {
  nlohmann::ordered_json special = nlohmann::ordered_json::object();
  if (tokenizer.end_of_text())
    special = {{"bos_token", tokenizer::kEndOfText}, {"eos_token", tokenizer::kEndOfText}};
  nlohmann::ordered_json config{{"add_prefix_space", false},
                                {"clean_up_tokenization_spaces", false},
                                {"model_max_length", context},
                                // Of this class everything stands in tokenizer.json.
                                {"tokenizer_class", "PreTrainedTokenizerFast"}};
  config.update(special);
  return {{std::string(tokenizer::kTokenizerFile), tokenizer::to_json(tokenizer)},
          {"tokenizer_config.json", config.dump(2) + "\n"},
          {"special_tokens_map.json", special.dump(2) + "\n"}};
}

}  // namespace lockstep::exchange
