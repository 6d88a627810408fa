#include "data/lines/lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/hash.h"
#include "base/text.h"
#include "data/byte_source.h"
#include "data/class_names.h"
#include "data/file_list.h"
#include "data/lines/texts.h"
#include "data/split.h"
#include "data/token_windows.h"
#include "lockstep/error.h"
#include "tokenizer/encoder.h"
#include "tokenizer/tokenizer_file.h"

namespace lockstep::data {
namespace {

/// A text as a model gets it.
struct EncodedText {
  std::vector<int32_t> tokens;  // at most `length`
  int32_t label;
  std::string name;
};

/// What both parts have in common.
struct Reading {
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::vector<std::string> classes;
  int64_t length = 0, left_out = 0;
  std::string source;
};

class LineDataset : public Dataset {
 public:
  LineDataset(Reading reading, std::vector<EncodedText> texts)
      : reading_(std::move(reading)), texts_(std::move(texts)) {
    const Shape shape{reading_.length};
    fields_ = {{"tokens", {shape, DType::int32}},
               {"mask", {shape, DType::float32}},
               {std::string(kLabelField), {Shape{}, DType::int32}}};
    identity_ = hash_combine(reading_.tokenizer->identity(), static_cast<uint64_t>(reading_.length));
    for (const auto& name : reading_.classes) identity_ = hash_combine(identity_, hash64(name));
    for (const auto& text : texts_) {
      identity_ = hash_combine(identity_, hash64(text.tokens.data(), text.tokens.size() * sizeof(int32_t)));
      identity_ = hash_combine(identity_, static_cast<uint64_t>(text.label));
    }
  }

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t size() const override { return static_cast<int64_t>(texts_.size()); }
  int64_t classes() const override { return static_cast<int64_t>(reading_.classes.size()); }
  int64_t vocabulary(std::string_view field) const override {
    return field == "tokens" ? reading_.tokenizer->size() : classes();
  }
  Encodings encodings() const override {
    Encodings kept = class_encoding(reading_.classes);
    kept.emplace(tokenizer::kTokenizerFile, tokenizer::to_json(*reading_.tokenizer));
    return kept;
  }
  uint64_t identity() const override { return identity_; }
  std::string description() const override {
    return fmt::format("{} texts of {} classes, cut or padded to {} tokens, vocabulary {}: {}", size(),
                       classes(), reading_.length, reading_.tokenizer->size(), reading_.source);
  }
  std::vector<std::string> class_names() const override { return reading_.classes; }
  Damage damage() const override { return {.left_out = reading_.left_out, .replaced = {}}; }

  void read(const SampleKey& key, std::span<std::byte* const> destinations) const override {
    const EncodedText& text = texts_[static_cast<size_t>(key.sample)];
    const auto& tokens = text.tokens;
    const auto length = static_cast<size_t>(reading_.length);
    if (destinations[0]) {
      auto* to = reinterpret_cast<int32_t*>(destinations[0]);
      std::fill(std::ranges::copy(tokens, to).out, to + length, 0);
    }
    if (destinations[1]) {
      auto* to = reinterpret_cast<float*>(destinations[1]);
      std::fill(std::fill_n(to, tokens.size(), 1.0f), to + length, 0.0f);
    }
    if (destinations[2]) std::memcpy(destinations[2], &text.label, sizeof text.label);
  }

 private:
  Reading reading_;
  std::vector<EncodedText> texts_;
  std::vector<Field> fields_;
  uint64_t identity_ = 0;
};

std::shared_ptr<const tokenizer::Tokenizer> find_tokenizer(const DataOptions& options) {
  if (auto of_model = tokenizer_of_model(options)) return of_model;
  if (!options.lines.tokenizer.empty())
    return std::make_shared<const tokenizer::Tokenizer>(
        tokenizer::read_tokenizer(data_file(options, options.lines.tokenizer)));
  std::string bytes(256, '\0');
  for (size_t byte = 0; byte < bytes.size(); ++byte) bytes[byte] = static_cast<char>(byte);
  return std::make_shared<const tokenizer::Tokenizer>(tokenizer::Tokenizer::of_characters(bytes));
}

/// Of the model that is evaluated; otherwise those that texts have, sorted.
std::vector<std::string> find_classes(const DataOptions& options, const std::vector<LabelledText>& texts) {
  if (auto of_model = classes_of_model(options)) return *of_model;
  std::vector<std::string> classes;
  for (const auto& text : texts) classes.push_back(text.label);
  std::ranges::sort(classes);
  classes.erase(std::ranges::unique(classes).begin(), classes.end());
  return classes;
}

/// Texts of a class that the model does not have are damaged, as are those with characters that are no
/// tokens. Their names are added to `damaged`.
std::vector<EncodedText> encode(const std::vector<LabelledText>& texts, const Reading& reading,
                                DamageLog& damage, std::set<std::string>& damaged) {
  tokenizer::Encoder encoder(*reading.tokenizer);
  std::vector<EncodedText> encoded;
  for (const auto& text : texts) {
    const auto found = std::ranges::find(reading.classes, text.label);
    if (found == reading.classes.end() && !text.label.empty()) {
      damage.note(text.place, fmt::format("'{}' is none of the {} classes", one_line(text.label),
                                          reading.classes.size()));
      damaged.insert(text.name);
      continue;
    }
    EncodedText& result = encoded.emplace_back();
    result.name = text.name;
    result.label = text.label.empty() ? -1 : static_cast<int32_t>(found - reading.classes.begin());
    try {
      encoder.encode(text.text, result.tokens);
    } catch (const DataError& error) {
      encoded.pop_back();
      damage.note(text.place, error.what());
      damaged.insert(text.name);
      continue;
    }
    if (static_cast<int64_t>(result.tokens.size()) > reading.length)
      result.tokens.resize(static_cast<size_t>(reading.length));
    result.tokens.shrink_to_fit();
  }
  return encoded;
}

/// Whether the list names each text. It may also name texts that are `damaged` and left out. Throws DataError
/// for other names that no text has.
std::vector<bool> listed_texts(const std::vector<EncodedText>& train, const std::set<std::string>& damaged,
                               const DataOptions& options) {
  std::set<std::string> unmet;
  for (const auto& line : read_list(options, options.lines.eval_list)) unmet.insert(std::string(trim(line)));
  const std::set<std::string> names = unmet;
  std::vector<bool> evaluates;
  for (const auto& text : train) {
    evaluates.push_back(names.contains(text.name));
    unmet.erase(text.name);
  }
  for (const auto& name : damaged) unmet.erase(name);
  if (!unmet.empty())
    throw DataError(fmt::format(
        "{}: expected {}, found '{}', which no text has", one_line(options.lines.eval_list),
        options.lines.folder.empty() ? "numbers of texts, from 0 on" : "paths of texts below the folder",
        one_line(unmet.begin()->substr(0, 200))));
  return evaluates;
}

/// Equal texts are told apart by how many come before.
std::vector<bool> drawn_texts(const std::vector<EncodedText>& train, const LineOptions& lines) {
  std::map<uint64_t, int64_t> seen;
  std::vector<std::string> names;
  std::vector<int32_t> labels;
  for (const auto& text : train) {
    const uint64_t hash = hash64(text.tokens.data(), text.tokens.size() * sizeof(int32_t));
    names.push_back(
        fmt::format("{} {}", to_hex(hash), seen[hash_combine(hash, static_cast<uint64_t>(text.label))]++));
    labels.push_back(text.label);
  }
  return draw_split(std::vector<std::string_view>(names.begin(), names.end()), labels, lines.eval_fraction,
                    lines.split_seed);
}

/// Moves what the split says.
std::vector<EncodedText> take_evaluation(std::vector<EncodedText>& train,
                                         const std::set<std::string>& damaged, const DataOptions& options) {
  const std::vector<bool> evaluates = options.lines.eval_list.empty() ? drawn_texts(train, options.lines)
                                                                      : listed_texts(train, damaged, options);
  std::vector<EncodedText> rest, eval;
  for (size_t i = 0; i < train.size(); ++i) (evaluates[i] ? eval : rest).push_back(std::move(train[i]));
  train = std::move(rest);
  return eval;
}

void check(const LineOptions& lines) {
  require(lines.length >= 1,
          fmt::format("data.lines.length: expected at least 1 token, found {}", lines.length));
  require(lines.files.empty() != lines.folder.empty(), "data.lines: expected either files or a folder");
  require(lines.eval_fraction >= 0 && lines.eval_fraction <= 1,
          fmt::format("data.lines.eval_fraction: expected 0 to 1, found {}", lines.eval_fraction));
}

struct Texts {
  std::vector<LabelledText> train, eval;
  std::set<std::string> damaged_train{}, damaged_eval{};  // names
};

Texts read_texts(const DataOptions& options, DamageLog& damage) {
  const LineOptions& lines = options.lines;
  Texts texts;
  // Training texts name the classes, unless the model does.
  const bool has_eval = !lines.eval_files.empty() || !lines.eval_folder.empty();
  const bool needs_train = options.trains || options.encodings.empty() || !has_eval;
  TextReading train_reading{.most_inflated = options.most_inflated_bytes};
  TextReading eval_reading{.may_lack_labels = options.may_lack_truth,
                           .most_inflated = options.most_inflated_bytes};
  if (!lines.folder.empty()) {
    if (needs_train) read_text_folder(data_file(options, lines.folder), train_reading, damage, texts.train);
    if (!lines.eval_folder.empty())
      read_text_folder(data_file(options, lines.eval_folder), eval_reading, damage, texts.eval);
  } else {
    const SplitFiles files = split_files(options, lines.files, lines.eval_files, needs_train);
    if (needs_train)
      for (const auto& path : files.train) read_lines(path, train_reading, damage, texts.train);
    for (const auto& path : files.eval) read_lines(path, eval_reading, damage, texts.eval);
  }
  texts.damaged_train = std::move(train_reading.damaged);
  texts.damaged_eval = std::move(eval_reading.damaged);
  return texts;
}

}  // namespace

DatasetPair open_line_datasets(const DataOptions& options) {
  const LineOptions& lines = options.lines;
  check(lines);
  DamageLog damage(options);
  Texts texts = read_texts(options, damage);
  Reading reading{.tokenizer = find_tokenizer(options), .classes = {}, .length = lines.length};
  reading.source = one_line(lines.folder.empty() ? lines.files.front() : lines.folder);
  reading.classes = find_classes(options, texts.train.empty() ? texts.eval : texts.train);
  auto train = encode(texts.train, reading, damage, texts.damaged_train),
       eval = encode(texts.eval, reading, damage, texts.damaged_eval);
  const bool divides = lines.eval_fraction > 0 || !lines.eval_list.empty(),
             evaluates = divides || !lines.eval_folder.empty() || !lines.eval_files.empty();
  if (divides) eval = take_evaluation(train, texts.damaged_train, options);
  damage.finish("texts");
  reading.left_out = damage.count();
  if ((options.trains && train.empty()) || (evaluates && eval.empty()))
    throw DataError(fmt::format("{}: expected texts to {} on, found none", reading.source,
                                options.trains && train.empty() ? "train" : "evaluate"));
  DatasetPair data;
  if (options.trains) data.train = std::make_shared<LineDataset>(reading, std::move(train));
  // Of both parts together: it is counted once.
  if (data.train) reading.left_out = 0;
  if (evaluates) data.eval = std::make_shared<LineDataset>(reading, std::move(eval));
  return data;
}

}  // namespace lockstep::data
