#include "tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "lockstep/error.h"
#include "tokenizer/encoder.h"

namespace lockstep::tokenizer {
namespace {

bool is_special(const TokenizerParts& parts, int32_t token) {
  return std::ranges::binary_search(parts.special, token);
}

uint64_t identity_of(const TokenizerParts& parts) {
  uint64_t hash = hash64(std::string_view());
  for (const auto& token : parts.tokens) hash = hash_combine(hash, hash64(token));
  hash = hash_combine(hash, hash64(parts.special.data(), parts.special.size() * sizeof(int32_t)));
  hash = hash_combine(hash, hash64(parts.merges.data(), parts.merges.size() * sizeof(Merge)));
  hash = hash_combine(hash, parts.divides_words);
  // It came later: without it, tokenizers are those of before.
  return parts.ignore_merges ? hash_combine(hash, hash64("ignore_merges")) : hash;
}

}  // namespace

std::array<uint8_t, 256> bytes_in_gpt2_order() {
  const auto printable = [](int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
  };
  std::array<uint8_t, 256> order{};
  for (int byte = 0; byte < 256; ++byte) order[static_cast<size_t>(byte)] = static_cast<uint8_t>(byte);
  std::stable_partition(order.begin(), order.end(), printable);
  return order;
}

Tokenizer::Tokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  if (parts_.tokens.empty() || size() > kMostTokens)
    throw DataError(fmt::format("expected 1 to {} tokens, found {}", kMostTokens, size()));
  std::ranges::sort(parts_.special);
  for (const int32_t token : parts_.special)
    if (token < 0 || token >= size())
      throw DataError(fmt::format("expected special tokens in [0, {}), found {}", size(), token));
  find_bytes();
  check_merges();
  merges_ = MergeTable(parts_.merges);
  is_of_characters_ = parts_.merges.empty() && parts_.special.empty() &&
                      std::ranges::all_of(parts_.tokens, [](const auto& token) { return token.size() == 1; });
  // As it was before there were merges: checkpoints know texts by it.
  identity_ = is_of_characters() ? hash64(characters()) : identity_of(parts_);
}

Tokenizer Tokenizer::of_characters(std::string_view text) {
  std::array<bool, 256> used{};
  for (const char byte : text) used[static_cast<uint8_t>(byte)] = true;
  TokenizerParts parts;
  for (size_t byte = 0; byte < 256; ++byte)
    if (used[byte]) parts.tokens.emplace_back(1, static_cast<char>(byte));
  return Tokenizer(std::move(parts));
}

void Tokenizer::find_bytes() {
  token_of_byte_.fill(-1);
  for (int32_t token = 0; token < size(); ++token) {
    const std::string& bytes = parts_.tokens[static_cast<size_t>(token)];
    if (is_special(parts_, token)) {
      if (bytes == kEndOfText) end_of_text_ = token;
      continue;
    }
    if (parts_.ignore_merges) token_of_word_.emplace(bytes, token);
    if (bytes.size() != 1) continue;
    int32_t& known = token_of_byte_[static_cast<uint8_t>(bytes[0])];
    if (known >= 0)
      throw DataError(fmt::format("byte 0x{:02x} is token {} and token {}; expected it once",
                                  static_cast<uint8_t>(bytes[0]), known, token));
    known = token;
  }
}

void Tokenizer::check_merges() const {
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (const auto& [left, right, merged] : parts_.merges) {
    for (const int32_t token : {left, right, merged})
      if (token < 0 || token >= size() || is_special(parts_, token))
        throw DataError(fmt::format("merge {}: expected tokens of texts in [0, {}), found {}", pairs.size(),
                                    size(), token));
    const auto& tokens = parts_.tokens;
    if (tokens[static_cast<size_t>(merged)] !=
        tokens[static_cast<size_t>(left)] + tokens[static_cast<size_t>(right)])
      throw DataError(
          fmt::format("merge {}: token {} is not the bytes of {} and {}", pairs.size(), merged, left, right));
    pairs.emplace_back(left, right);
  }
  std::ranges::sort(pairs);
  if (const auto twice = std::ranges::adjacent_find(pairs); twice != pairs.end())
    throw DataError(fmt::format("tokens {} and {} are merged twice", twice->first, twice->second));
}

std::optional<int32_t> Tokenizer::token_of_word(std::string_view word) const {
  const auto found = token_of_word_.find(word);
  return found == token_of_word_.end() ? std::nullopt : std::optional(found->second);
}

std::string Tokenizer::characters() const {
  std::string all;
  for (const auto& token : parts_.tokens) all += token;
  return all;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> tokens;
  Encoder(*this).encode(text, tokens);
  return tokens;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= size())
      throw DataError(
          fmt::format("expected a token in [0, {}), found {} at position {}", size(), tokens[i], i));
    text += parts_.tokens[static_cast<size_t>(tokens[i])];
  }
  return text;
}

std::string Tokenizer::description() const {
  return is_of_characters() ? fmt::format("{} characters", size())
                            : fmt::format("{} tokens of byte pairs", size());
}

}  // namespace lockstep::tokenizer
