#include "data/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/ensure.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/byte_source.h"
#include "data/documents.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

std::string_view view_of(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

uint64_t identity_of(const TokenizedText& text, int64_t begin, int64_t end, int64_t context, int64_t stride) {
  const int64_t header[3] = {context, stride, end - begin};
  return hash_combine(hash_combine(hash64(header, sizeof header), text.tokenizer->identity()),
                      std::visit(
                          [&](const auto& tokens) {
                            return hash64(tokens.data() + begin,
                                          static_cast<size_t>(end - begin) * sizeof tokens[0]);
                          },
                          text.tokens));
}

std::shared_ptr<const Dataset> windows_of(const std::shared_ptr<const TokenizedText>& text, int64_t begin,
                                          int64_t end, int64_t context, int64_t stride) {
  const char* unit = text->tokenizer->is_of_characters() ? "characters" : "tokens";
  return make_token_windows({.segments = {{text, begin, end}},
                             .context = context,
                             .stride = stride,
                             .pads = stride == context,
                             .vocabulary = text->tokenizer->size(),
                             .tokenizer = text->tokenizer,
                             .identity = identity_of(*text, begin, end, context, stride),
                             .description = fmt::format("{} [{}, {}) of {}", unit, begin, end, text->path)});
}

void require_known(const std::string& path, const tokenizer::Tokenizer& tokenizer, std::string_view text) {
  const auto unknown = std::ranges::find_if(
      text, [&](char byte) { return tokenizer.token_of(static_cast<uint8_t>(byte)) < 0; });
  if (unknown == text.end()) return;
  throw DataError(fmt::format(
      "{}: the text has characters that are not among the model's {} tokens: {}; evaluate on a "
      "text without them",
      path, tokenizer.size(),
      describe_new(tokenizer.characters(), tokenizer::Tokenizer::of_characters(text).characters())));
}

/// The token that begins documents; nothing: the text is one document.
std::optional<int32_t> find_end_of_text(const DataOptions& options, const TokenizedText& text) {
  const std::string& stated = options.documents.end_of_text_character;
  if (stated.empty()) return {};
  require(stated.size() == 1,
          fmt::format("data.text.end_of_text: expected one character of one byte, found '{}'", stated));
  require(text.tokenizer->is_of_characters(),
          "data.text.end_of_text: the model's tokens are no characters; remove it, or make files of tokens");
  if (const auto token = begin_of_documents(options, text.tokenizer.get())) return token;
  require(!options.trains,
          fmt::format("{}: data.text.end_of_text: the text has no such character", text.path));
  return {};
}

}  // namespace

int64_t TokenizedText::count() const {
  return std::visit([](const auto& all) { return static_cast<int64_t>(all.size()); }, tokens);
}

void TokenizedText::read(int64_t begin, std::span<int32_t> to) const {
  std::visit([&](const auto& all) { std::copy_n(all.begin() + begin, to.size(), to.begin()); }, tokens);
}

std::string describe_new(const std::string& known, const std::string& found) {
  constexpr size_t kMost = 8;
  std::vector<std::string> names;
  for (const char c : found)
    if (known.find(c) == std::string::npos)
      names.push_back(c > ' ' && c <= '~' ? fmt::format("'{}'", c)
                                          : fmt::format("0x{:02x}", static_cast<unsigned char>(c)));
  const size_t count = names.size();
  if (count > kMost) names.resize(kMost);
  return fmt::format("new are {}{}", join(names, ", "),
                     count > kMost ? fmt::format(" and {} more", count - kMost) : "");
}

std::shared_ptr<const TokenizedText> read_text(const std::string& path, double train_fraction,
                                               std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                                               int64_t most_inflated) {
  require(train_fraction >= 0 && train_fraction <= 1,
          fmt::format("data.train_fraction: expected a number from 0 to 1, found {}", train_fraction));
  std::vector<uint8_t> bytes = read_all_bytes(path, most_inflated);
  if (bytes.empty()) throw DataError(fmt::format("{}: expected a text, found an empty file", path));
  auto text = std::make_shared<TokenizedText>();
  text->path = path;
  const auto train_bytes =
      static_cast<size_t>(std::floor(train_fraction * static_cast<double>(bytes.size())));
  if (tokenizer) {
    // Nobody reads the first part.
    const std::string_view read = view_of(bytes).substr(train_bytes);
    require_known(path, *tokenizer, read);
    text->tokenizer = std::move(tokenizer);
    text->tokens = text->tokenizer->encode(read);
  } else {
    text->tokenizer =
        std::make_shared<const tokenizer::Tokenizer>(tokenizer::Tokenizer::of_characters(view_of(bytes)));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(text->tokenizer->token_of(byte));
    text->tokens = std::move(bytes);
    text->train_count = static_cast<int64_t>(train_bytes);
  }
  return text;
}

DatasetPair open_text_datasets(const DataOptions& options) {
  ensure(!options.trains || options.encodings.empty(), "who trains takes the text's own characters");
  require(!options.text_file.empty(), "data: a text data set needs the name of its text_file");
  require(options.context >= 1,
          fmt::format("data.context: expected at least 1 token per sample, found {}", options.context));
  const auto text = read_text(data_file(options, options.text_file), options.train_fraction,
                              tokenizer_of_model(options), options.most_inflated_bytes);
  const int64_t total = text->count();
  if (options.trains && text->train_count <= options.context)
    throw DataError(
        fmt::format("{}: expected more than {} characters to train on (context {}), found {}; use a longer "
                    "text, a shorter context or a larger train_fraction",
                    text->path, options.context, options.context, text->train_count));
  const bool evaluates = options.train_fraction < 1;
  if (evaluates && total - text->train_count < 2)
    throw DataError(
        fmt::format("{}: expected at least 2 characters to evaluate on, found {} after the first {}; use a "
                    "smaller train_fraction, or 1 for no evaluation",
                    text->path, total - text->train_count, text->train_count));
  DatasetPair data;
  if (options.trains) data.train = windows_of(text, 0, text->train_count, options.context, 1);
  if (evaluates) data.eval = windows_of(text, text->train_count, total, options.context, options.context);
  if (options.documents.are_read) data = with_documents(std::move(data), find_end_of_text(options, *text));
  return data;
}

}  // namespace lockstep::data
