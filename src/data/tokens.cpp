#include "data/tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "data/byte_source.h"
#include "data/damage_log.h"
#include "data/documents.h"
#include "data/file_attempts.h"
#include "data/file_list.h"
#include "data/split.h"
#include "data/token_file.h"
#include "data/token_windows.h"
#include "lockstep/error.h"
#include "tokenizer/tokenizer_file.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

// What is drawn for evaluation is so many windows long: whole passages, which share few words with training.
constexpr int64_t kBlockWindows = 16;

using Files = std::vector<std::shared_ptr<const TokenFile>>;

SplitFiles find_paths(const DataOptions& options) {
  const TokenOptions& tokens = options.tokens;
  auto eval_files = tokens.eval_files;
  if (!tokens.eval_list.empty())
    for (auto& name : read_list(options, tokens.eval_list)) eval_files.push_back(std::move(name));
  return split_files(options, tokens.files, eval_files, options.trains || eval_files.empty());
}

std::shared_ptr<const tokenizer::Tokenizer> find_tokenizer(const DataOptions& options,
                                                           const SplitFiles& paths) {
  const auto& stated = options.tokens.tokenizer;
  std::error_code unknown;
  if (!options.trains && !stated.empty() && !fs::exists(path_in(options.directory, stated), unknown))
    if (auto of_model = tokenizer_of_model(options)) return of_model;
  if (!stated.empty())
    return std::make_shared<const tokenizer::Tokenizer>(
        tokenizer::read_tokenizer(data_file(options, stated)));
  const auto& first = paths.train.empty() ? paths.eval.front() : paths.train.front();
  const fs::path beside = fs::path(first).parent_path() / tokenizer::kTokenizerFile;
  // Files of evaluation alone may lie elsewhere than the tokenizer that they share with those of training.
  if (!fs::exists(beside, unknown)) return paths.train.empty() ? tokenizer_of_model(options) : nullptr;
  return std::make_shared<const tokenizer::Tokenizer>(tokenizer::read_tokenizer(beside.string()));
}

/// What is done about tokens beyond the vocabulary: `data check` wants to know of them, and has no samples.
BeyondVocabulary beyond_vocabulary(const DataOptions& options) {
  if (options.found) return BeyondVocabulary::count;
  return options.on_damage == DamagePolicy::skip ? BeyondVocabulary::list : BeyondVocabulary::fail;
}

Files open_files(const std::vector<std::string>& paths, const DataOptions& options, int64_t vocabulary,
                 FileAttempts& attempt) {
  Files files;
  for (const auto& path : paths)
    attempt(path, [&] {
      files.push_back(std::make_shared<const TokenFile>(path, options.tokens.format, vocabulary,
                                                        beyond_vocabulary(options)));
    });
  DamageLog damage(options);
  for (const auto& file : files)
    for (const int64_t token : file->damaged())
      damage.note(
          {file->path(), "token", token, file->byte_of(token)},
          fmt::format("expected a token below {}, found another one; samples that hold it are left out",
                      vocabulary));
  damage.finish("tokens");
  return files;
}

struct Segments {
  std::vector<TokenSegment> train, eval;
};

std::vector<TokenSegment> whole(const Files& files) {
  std::vector<TokenSegment> segments;
  for (const auto& file : files) segments.push_back({file, 0, file->count()});
  return segments;
}

/// Cuts files into blocks, of which the split draws some. A segment ends with the first token of the next,
/// which only the former predicts.
Segments draw_segments(const Files& files, const TokenOptions& tokens) {
  const int64_t block = kBlockWindows * tokens.context;
  std::vector<std::string> units;
  for (const auto& file : files)
    for (int64_t begin = 0; begin < file->count(); begin += block)
      units.push_back(fmt::format("{} {}", to_hex(file->identity()), begin));
  const std::vector<bool> evaluates =
      draw_split(std::vector<std::string_view>(units.begin(), units.end()),
                 std::vector<int32_t>(units.size(), 0), tokens.eval_fraction, tokens.split_seed);
  Segments segments;
  size_t unit = 0;
  for (const auto& file : files)
    for (int64_t begin = 0; begin < file->count(); begin += block, ++unit) {
      auto& own = evaluates[unit] ? segments.eval : segments.train;
      const int64_t end = std::min(file->count(), begin + block + 1);
      const bool goes_on = begin > 0 && evaluates[unit - 1] == evaluates[unit];
      if (goes_on)
        own.back().end = end;
      else
        own.push_back({file, begin, end});
    }
  return segments;
}

uint64_t identity_of(const TokenWindowsOptions& windows) {
  const int64_t header[2] = {windows.context, windows.stride};
  uint64_t hash = hash64(header, sizeof header);
  if (windows.tokenizer) hash = hash_combine(hash, windows.tokenizer->identity());
  for (const auto& segment : windows.segments) {
    const int64_t range[2] = {segment.begin, segment.end};
    hash = hash_combine(hash, static_cast<const TokenFile&>(*segment.sequence).identity());
    hash = hash_combine(hash, hash64(range, sizeof range));
    // What is left out goes by the vocabulary, which no file has.
    if (const auto& damaged = segment.sequence->damaged(); !damaged.empty())
      hash = hash_combine(hash, hash64(damaged.data(), damaged.size() * sizeof damaged[0]));
  }
  return hash;
}

std::string describe(const std::vector<TokenSegment>& segments) {
  int64_t tokens = 0;
  std::vector<std::string> paths;
  for (const auto& segment : segments) {
    tokens += segment.end - segment.begin;
    const auto& path = static_cast<const TokenFile&>(*segment.sequence).path();
    if (paths.empty() || paths.back() != path) paths.push_back(path);
  }
  return fmt::format("{} tokens of {}{}", tokens, one_line(paths.front()),
                     paths.size() > 1 ? fmt::format(" and {} more files", paths.size() - 1) : "");
}

std::shared_ptr<const Dataset> make(TokenWindowsOptions windows, const char* purpose) {
  if (count_token_windows(windows) == 0)
    throw DataError(
        fmt::format("data.tokens: expected {} tokens to {} on in one piece, found too few in {}; use more "
                    "tokens, a shorter context or another split",
                    windows.pads ? 2 : windows.context + 1, purpose,
                    windows.segments.empty() ? "no file" : describe(windows.segments)));
  windows.identity = identity_of(windows);
  windows.description = describe(windows.segments);
  return make_token_windows(std::move(windows));
}

int64_t largest_of(const Files& files) {
  int64_t largest = 0;
  for (const auto& file : files) largest = std::max(largest, file->largest());
  return largest;
}

/// The token that begins documents. `is_known`: the vocabulary is stated, or the tokenizer's; else it is that
/// of the files, and those of evaluation alone may have no end of a text.
int32_t find_end_of_text(const DataOptions& options, const tokenizer::Tokenizer* tokenizer,
                         int64_t vocabulary, bool is_known) {
  const int64_t stated = options.documents.end_of_text;
  if (stated >= vocabulary && (is_known || options.trains))
    throw ConfigError(fmt::format(
        "data.tokens.end_of_text: expected a token below {}, the vocabulary; found {}", vocabulary, stated));
  if (const auto token = begin_of_documents(options, tokenizer)) return *token;
  throw ConfigError(
      fmt::format("data.tokens.end_of_text: the model reads 'documents', so the token that begins a document "
                  "must be stated: {}; GPT-2's is 50256",
                  tokenizer == nullptr ? "there is no tokenizer"
                                       : fmt::format("the tokenizer has no {}", tokenizer::kEndOfText)));
}

void check(const TokenOptions& tokens) {
  require(!tokens.files.empty(), "data.tokens.files: expected a file or a pattern, found none");
  require(tokens.eval_fraction >= 0 && tokens.eval_fraction <= 1,
          fmt::format("data.tokens.eval_fraction: expected 0 to 1, found {}", tokens.eval_fraction));
  require(tokens.context >= 1 && tokens.stride >= 0 && tokens.vocabulary >= 0,
          fmt::format("data.tokens: expected a context from 1 on, a stride and a vocabulary from 0 on, found "
                      "{}, {} and {}",
                      tokens.context, tokens.stride, tokens.vocabulary));
}

}  // namespace

DatasetPair open_token_datasets(const DataOptions& options) {
  const TokenOptions& tokens = options.tokens;
  check(tokens);
  const SplitFiles paths = find_paths(options);
  const auto tokenizer = find_tokenizer(options, paths);
  const int64_t limit = tokens.vocabulary > 0 ? tokens.vocabulary : tokenizer ? tokenizer->size() : 0;
  const bool by_file = !paths.eval.empty();
  FileAttempts attempt(options);
  const Files train_files =
      options.trains || !by_file ? open_files(paths.train, options, limit, attempt) : Files();
  const Files eval_files = open_files(paths.eval, options, limit, attempt);
  attempt.finish();
  const Segments segments =
      by_file ? Segments{whole(train_files), whole(eval_files)} : draw_segments(train_files, tokens);
  TokenWindowsOptions windows{
      .segments = {},
      .context = tokens.context,
      .stride = tokens.stride > 0 ? tokens.stride : tokens.context,
      .vocabulary = limit > 0 ? limit : std::max(largest_of(train_files), largest_of(eval_files)) + 1,
      .tokenizer = tokenizer,
      .identity = 0,
      .description = ""};
  std::optional<int32_t> end_of_text;
  if (options.documents.are_read)
    end_of_text = find_end_of_text(options, tokenizer.get(), windows.vocabulary, limit > 0);
  DatasetPair data;
  windows.segments = segments.train;
  if (options.trains) data.train = make(windows, "train");
  windows.segments = segments.eval;
  windows.stride = windows.context;
  windows.pads = true;
  if (by_file || tokens.eval_fraction > 0) data.eval = make(windows, "evaluate");
  return options.documents.are_read ? with_documents(std::move(data), end_of_text) : data;
}

}  // namespace lockstep::data
