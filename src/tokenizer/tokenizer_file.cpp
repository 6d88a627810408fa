#include "tokenizer/tokenizer_file.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/json_number.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "tokenizer/unicode.h"

namespace lockstep::tokenizer {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

/// GPT-2 writes each byte as one printable character: printable bytes as themselves, the rest from U+0100 on.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    constexpr size_t kPrintable = 188;
    const auto order = bytes_in_gpt2_order();
    for (size_t i = 0; i < order.size(); ++i) {
      const uint32_t code = i < kPrintable ? order[i] : static_cast<uint32_t>(0x100 + i - kPrintable);
      std::string text;
      if (code < 0x80) {
        text.push_back(static_cast<char>(code));
      } else {
        text.push_back(static_cast<char>(0xc0 | code >> 6));
        text.push_back(static_cast<char>(0x80 | (code & 0x3f)));
      }
      byte_of_.emplace(text, static_cast<char>(order[i]));
      written_[order[i]] = std::move(text);
    }
  }

  std::string write(std::string_view bytes) const {
    std::string text;
    for (const char byte : bytes) text += written_[static_cast<uint8_t>(byte)];
    return text;
  }

  /// Throws DataError for a character that stands for no byte.
  std::string read(std::string_view text) const {
    std::string bytes;
    for (size_t at = 0; at < text.size();) {
      const size_t length = character_at(text, at).bytes;
      const auto found = byte_of_.find(text.substr(at, length));
      if (found == byte_of_.end())
        throw DataError(
            fmt::format("token '{}' has a character that stands for no byte; expected the alphabet of "
                        "byte-level BPE",
                        text));
      bytes.push_back(found->second);
      at += length;
    }
    return bytes;
  }

 private:
  std::array<std::string, 256> written_;
  std::map<std::string, char, std::less<>> byte_of_;
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet only;
  return only;
}

/// Reads merges as pairs of written tokens, whose numbers and bytes are known.
class MergeReader {
 public:
  explicit MergeReader(TokenizerParts& parts) : parts_(parts) {
    for (size_t token = 0; token < parts.tokens.size(); ++token)
      number_of_.emplace(parts.tokens[token], static_cast<int32_t>(token));
  }
  /// If `adds`, the result is a new token.
  void add(std::string_view left, std::string_view right, bool adds) {
    const std::string first = alphabet().read(left), second = alphabet().read(right);
    if (adds && number_of_.emplace(first + second, static_cast<int32_t>(parts_.tokens.size())).second)
      parts_.tokens.push_back(first + second);
    parts_.merges.push_back({number(first), number(second), number(first + second)});
  }

 private:
  int32_t number(const std::string& bytes) const {
    const auto found = number_of_.find(bytes);
    if (found == number_of_.end())
      throw DataError(fmt::format("merge {} needs token '{}', which is not there", parts_.merges.size(),
                                  alphabet().write(bytes)));
    return found->second;
  }

  TokenizerParts& parts_;
  std::unordered_map<std::string, int32_t> number_of_;
};

/// Refuses a field that would change what texts are encoded as.
void refuse(const Json& object, const char* field, bool expected) {
  if (!object.contains(field) || object[field].is_null()) return;
  if (object[field].is_string() && object[field].get_ref<const std::string&>().empty()) return;
  if (object[field].is_boolean() && object[field] == expected) return;
  throw DataError(fmt::format("'{}' is {}; only byte-level BPE without it is known", field,
                              object[field].dump(-1, ' ', true).substr(0, 80)));
}

bool divides_words(const Json& json) {
  refuse(json, "normalizer", false);
  if (!json.contains("pre_tokenizer") || json["pre_tokenizer"].is_null())
    throw DataError("'pre_tokenizer' is not there; expected ByteLevel");
  const Json& divides = json["pre_tokenizer"];
  if (divides.at("type") != "ByteLevel")
    throw DataError(fmt::format("'pre_tokenizer' is {}; expected ByteLevel",
                                divides["type"].dump(-1, ' ', true).substr(0, 80)));
  refuse(divides, "add_prefix_space", false);
  return divides.value("use_regex", true);
}

TokenizerParts parts_from(const Json& json) {
  const Json& model = json.at("model");
  if (model.value("type", "BPE") != "BPE") throw DataError("'model' is not BPE");
  for (const char* field : {"continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "dropout"})
    refuse(model, field, false);
  TokenizerParts parts{.divides_words = divides_words(json),
                       .ignore_merges = model.value("ignore_merges", false)};
  std::map<int64_t, std::string> written, special;
  for (const auto& added : json.value("added_tokens", Json::array()))
    special.emplace(demand_whole_number<int64_t>(added.at("id")), added.at("content").get<std::string>());
  for (const auto& [token, number] : model.at("vocab").items())
    if (const auto id = demand_whole_number<int64_t>(number);
        !special.contains(id) && !written.emplace(id, token).second)
      throw DataError(fmt::format("token {} is there twice", id));
  const auto count = static_cast<int64_t>(written.size() + special.size());
  for (int64_t token = 0; token < count; ++token) {
    const auto text = written.find(token), name = special.find(token);
    if (text == written.end() && name == special.end())
      throw DataError(
          fmt::format("expected {} tokens from 0 on without gaps, found no token {}", count, token));
    if (text == written.end()) parts.special.push_back(static_cast<int32_t>(token));
    parts.tokens.push_back(text == written.end() ? name->second : alphabet().read(text->second));
  }
  MergeReader reader(parts);
  for (const auto& merge : model.at("merges")) {
    if (merge.is_array()) {
      reader.add(merge.at(0).get<std::string>(), merge.at(1).get<std::string>(), false);
      continue;
    }
    const auto& pair = merge.get_ref<const std::string&>();
    const size_t blank = pair.find(' ');
    if (blank == std::string::npos) throw DataError(fmt::format("merge '{}' is not two tokens", pair));
    reader.add(std::string_view(pair).substr(0, blank), std::string_view(pair).substr(blank + 1), false);
  }
  return parts;
}

}  // namespace

std::string to_json(const Tokenizer& tokenizer) {
  const TokenizerParts& parts = tokenizer.parts();
  OrderedJson added = OrderedJson::array(), vocabulary = OrderedJson::object(), merges = OrderedJson::array();
  std::vector<std::string> written;
  for (const auto& token : parts.tokens) written.push_back(alphabet().write(token));
  for (const int32_t token : parts.special) {
    const std::string& name = written[static_cast<size_t>(token)] = parts.tokens[static_cast<size_t>(token)];
    added.push_back({{"id", token},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  // Its members are a vector, which is not searched for each that is added.
  auto& members =
      static_cast<OrderedJson::object_t::Container&>(vocabulary.get_ref<OrderedJson::object_t&>());
  for (size_t token = 0; token < written.size(); ++token) members.emplace_back(written[token], token);
  for (const auto& merge : parts.merges)
    merges.push_back(written[static_cast<size_t>(merge.left)] + " " +
                     written[static_cast<size_t>(merge.right)]);
  const OrderedJson bytes{{"type", "ByteLevel"},
                          {"add_prefix_space", false},
                          {"trim_offsets", true},
                          {"use_regex", parts.divides_words}};
  OrderedJson json{{"version", "1.0"},
                   {"truncation", nullptr},
                   {"padding", nullptr},
                   {"added_tokens", std::move(added)},
                   {"normalizer", nullptr},
                   {"pre_tokenizer", bytes},
                   {"post_processor", nullptr},
                   {"decoder", bytes},
                   {"model",
                    {{"type", "BPE"},
                     {"dropout", nullptr},
                     {"unk_token", nullptr},
                     {"continuing_subword_prefix", nullptr},
                     {"end_of_word_suffix", nullptr},
                     {"fuse_unk", false},
                     {"byte_fallback", false},
                     {"vocab", std::move(vocabulary)},
                     {"merges", std::move(merges)}}}};
  // Left out if it is false: checkpoints from before it have the same text.
  if (parts.ignore_merges) json["model"]["ignore_merges"] = true;
  return json.dump() + "\n";
}

Tokenizer tokenizer_from_json(std::string_view text, const std::string& name) {
  try {
    return Tokenizer(parts_from(Json::parse(text)));
  } catch (const nlohmann::json::exception& error) {
    throw DataError(
        fmt::format("{}: expected a tokenizer of Hugging Face's format with byte-level BPE, found "
                    "something else ({})",
                    name, error.what()));
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", name, error.what()));
  }
}

std::optional<Tokenizer> tokenizer_among(const std::map<std::string, std::string>& encodings,
                                         const std::string& where) {
  const auto found = encodings.find(std::string(kTokenizerFile));
  if (found == encodings.end()) return std::nullopt;
  return tokenizer_from_json(found->second, where.empty() ? found->first : where + "/" + found->first);
}

Tokenizer tokenizer_from_merges(std::string_view text, const std::string& name) {
  TokenizerParts parts{.divides_words = true};
  for (const uint8_t byte : bytes_in_gpt2_order()) parts.tokens.emplace_back(1, static_cast<char>(byte));
  int64_t line_number = 0;
  try {
    MergeReader reader(parts);
    while (!text.empty()) {
      const size_t end = text.find('\n');
      std::string_view line = text.substr(0, end);
      text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (++line_number == 1 && line.starts_with("#version")) continue;
      if (line.empty()) continue;
      const size_t blank = line.find(' ');
      if (blank == std::string_view::npos || line.find(' ', blank + 1) != std::string_view::npos)
        throw DataError("expected two tokens with a blank between them");
      reader.add(line.substr(0, blank), line.substr(blank + 1), true);
    }
    if (parts.merges.empty()) throw DataError("expected merges, found none");
    parts.special.push_back(static_cast<int32_t>(parts.tokens.size()));
    parts.tokens.emplace_back(kEndOfText);
    return Tokenizer(std::move(parts));
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: line {}: {}", name, line_number, error.what()));
  }
}

Tokenizer read_tokenizer(const std::string& path) {
  const std::string text = read_text_file(path);
  return trim(text).starts_with('{') ? tokenizer_from_json(text, path) : tokenizer_from_merges(text, path);
}

}  // namespace lockstep::tokenizer
