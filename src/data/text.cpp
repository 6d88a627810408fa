#include "data/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/ensure.h"
#include "base/hash.h"
#include "base/index.h"
#include "base/text.h"
#include "data/byte_source.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

/// Windows of `context` inputs, the k-th beginning `stride * k` tokens after `begin`; labels are shifted by
/// one.
class TextDataset : public Dataset {
 public:
  TextDataset(std::shared_ptr<const TokenizedText> text, int64_t begin, int64_t end, int64_t context,
              int64_t stride)
      : text_(std::move(text)), begin_(begin), end_(end), context_(context), stride_(stride) {
    const int64_t predictions = end - begin - 1;
    size_ = stride == 1 ? predictions - context + 1 : (predictions + stride - 1) / stride;
    fields_ = {{"tokens", {Shape{context}, DType::int32}},
               {std::string(kLabelField), {Shape{context}, DType::int32}}};
    const int64_t header[3] = {context, stride, end - begin};
    identity_ = hash_combine(hash64(header, sizeof header), hash64(text_->vocabulary.characters()));
    identity_ =
        hash_combine(identity_, hash64(text_->tokens.data() + begin, static_cast<size_t>(end - begin)));
  }

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t size() const override { return size_; }
  int64_t classes() const override { return text_->vocabulary.size(); }
  std::string characters() const override { return text_->vocabulary.characters(); }
  uint64_t identity() const override { return identity_; }
  std::string description() const override {
    return fmt::format("{} windows of {} characters, one every {}, vocabulary {}: characters [{}, {}) of {}",
                       size_, context_, stride_, classes(), begin_, end_, text_->path);
  }

  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    const int64_t first = begin_ + key.sample * stride_;
    const int64_t real = std::min(context_, end_ - 1 - first);  // predictions that the text holds
    const uint8_t* from = text_->tokens.data() + first;
    if (destinations[0]) copy(from, real, reinterpret_cast<int32_t*>(destinations[0]), 0);
    if (destinations[1]) copy(from + 1, real, reinterpret_cast<int32_t*>(destinations[1]), -1);
  }

 private:
  void copy(const uint8_t* from, int64_t real, int32_t* to, int32_t padding) const {
    std::copy(from, from + real, to);
    std::fill(to + real, to + context_, padding);
  }

  std::shared_ptr<const TokenizedText> text_;
  int64_t begin_, end_, context_, stride_;
  int64_t size_ = 0;
  uint64_t identity_ = 0;
  std::vector<Field> fields_;
};

}  // namespace

Vocabulary::Vocabulary(std::span<const uint8_t> text) {
  std::array<bool, 256> used{};
  for (const uint8_t byte : text) used[byte] = true;
  token_.fill(-1);
  for (size_t byte = 0; byte < 256; ++byte) {
    if (!used[byte]) continue;
    token_[byte] = static_cast<int16_t>(characters_.size());
    characters_.push_back(static_cast<char>(byte));
  }
}

std::vector<int32_t> Vocabulary::encode(std::string_view text) const {
  std::vector<int32_t> tokens;
  tokens.reserve(text.size());
  for (const char character : text) {
    tokens.push_back(token_of(static_cast<uint8_t>(character)));
    if (tokens.back() < 0)
      throw DataError(
          fmt::format("expected one of the vocabulary's {} characters, found byte 0x{:02x} at position {}",
                      size(), static_cast<uint8_t>(character), tokens.size() - 1));
  }
  return tokens;
}

std::string Vocabulary::decode(std::span<const int32_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (const int32_t token : tokens) {
    if (token < 0 || token >= size())
      throw DataError(
          fmt::format("expected a token in [0, {}), found {} at position {}", size(), token, text.size()));
    text.push_back(nth(characters_, token));
  }
  return text;
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
                                               const std::string& characters) {
  require(train_fraction >= 0 && train_fraction <= 1,
          fmt::format("data.train_fraction: expected a number from 0 to 1, found {}", train_fraction));
  std::vector<uint8_t> bytes = read_all_bytes(path);
  if (bytes.empty()) throw DataError(fmt::format("{}: expected a text, found an empty file", path));
  Vocabulary vocabulary(
      characters.empty() ? std::span<const uint8_t>(bytes)
                         : std::span(reinterpret_cast<const uint8_t*>(characters.data()), characters.size()));
  const auto train_count =
      static_cast<int64_t>(std::floor(train_fraction * static_cast<double>(bytes.size())));
  // Of a vocabulary that comes from elsewhere, nobody reads the first part.
  const std::span<const uint8_t> read = std::span(bytes).subspan(static_cast<size_t>(train_count));
  const auto unknown =
      std::ranges::find_if(read, [&](uint8_t byte) { return vocabulary.token_of(byte) < 0; });
  if (unknown != read.end())
    throw DataError(
        fmt::format("{}: the text has characters that are not among the model's {} tokens: {}; evaluate on a "
                    "text without them",
                    path, vocabulary.size(), describe_new(characters, Vocabulary(read).characters())));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(vocabulary.token_of(byte));
  return std::make_shared<TokenizedText>(
      TokenizedText{path, std::move(vocabulary), std::move(bytes), train_count});
}

DatasetPair open_text_datasets(const DataOptions& options) {
  ensure(!options.trains || options.characters.empty(), "who trains takes the text's own characters");
  require(!options.text_file.empty(), "data: a text data set needs the name of its text_file");
  require(options.context >= 1,
          fmt::format("data.context: expected at least 1 token per sample, found {}", options.context));
  const auto text =
      read_text(data_file(options, options.text_file), options.train_fraction, options.characters);
  const auto total = static_cast<int64_t>(text->tokens.size());
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
  if (options.trains)
    data.train = std::make_shared<TextDataset>(text, 0, text->train_count, options.context, 1);
  if (evaluates)
    data.eval =
        std::make_shared<TextDataset>(text, text->train_count, total, options.context, options.context);
  return data;
}

}  // namespace lockstep::data
