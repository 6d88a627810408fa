#include "data/token_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "data/byte_source.h"
#include "data/file_list.h"
#include "data/token_file.h"
#include "lockstep/error.h"
#include "tokenizer/encoder.h"
#include "tokenizer/learner.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/words.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = 4 << 20;

/// Where a text can be divided without other tokens; 0: nowhere in `piece`.
size_t division_for(const tokenizer::Tokenizer& tokenizer, std::string_view piece) {
  if (tokenizer.is_of_characters()) return piece.size();
  return tokenizer.parts().divides_words ? tokenizer::last_division(piece) : 0;
}

/// Calls `take` with pieces of the text, which end where `division` says. Returns its bytes. Unless a limit
/// is stated, a text may be of any size, as only a piece is in memory; but a piece of gzip data that grows,
/// because nothing divides it, has the default limit.
int64_t read_pieces(const std::string& path, int64_t most_inflated,
                    const std::function<size_t(std::string_view)>& division,
                    const std::function<void(std::string_view)>& take) {
  ByteSource source(path, most_inflated > 0 ? most_inflated : INT64_MAX);
  std::string piece;
  int64_t total = 0;
  for (;;) {
    const size_t kept = piece.size();
    piece.resize(kept + kPieceBytes);
    const int64_t got = source.read(piece.data() + kept, kPieceBytes);
    piece.resize(kept + static_cast<size_t>(got));
    total += got;
    if (got < static_cast<int64_t>(kPieceBytes)) break;
    // Without a place to divide it, a text is read on.
    const size_t end = division(piece);
    take(std::string_view(piece).substr(0, end));
    piece.erase(0, end);
    if (source.is_gzip() && static_cast<int64_t>(piece.size()) > default_most_inflated())
      throw DataError(fmt::format(
          "{}: up to byte {} of its text, {} bytes have no place to divide them: it was made to fill the "
          "memory; gunzip it if it is right",
          one_line(path), total, piece.size()));
  }
  take(piece);
  if (total == 0) throw DataError(fmt::format("{}: expected a text, found an empty file", one_line(path)));
  return total;
}

class NewFile {
 public:
  explicit NewFile(const fs::path& path) : path_(path), file_(std::fopen(path.c_str(), "wb")) {
    if (!file_) fail();
  }
  void write(const void* data, size_t bytes) {
    if (std::fwrite(data, 1, bytes, file_.get()) != bytes) fail();
  }
  void rewind() { std::rewind(file_.get()); }
  void finish() {
    if (std::fclose(file_.release()) != 0) fail();
  }

 private:
  [[noreturn]] void fail() const {
    throw IoError(fmt::format("cannot write {}: {}", one_line(path_.string()), std::strerror(errno)));
  }
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  fs::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// Tokens in files of so many each.
class Shards {
 public:
  Shards(fs::path directory, int token_bytes, int64_t shard_tokens)
      : directory_(std::move(directory)), token_bytes_(token_bytes), shard_tokens_(shard_tokens) {}

  void write(std::span<const int32_t> tokens) {
    while (!tokens.empty()) {
      if (!file_) begin();
      const auto count = std::min(static_cast<size_t>(shard_tokens_ - in_file_), tokens.size());
      write_some(tokens.first(count));
      tokens = tokens.subspan(count);
      if (in_file_ == shard_tokens_) finish();
    }
  }
  void finish() {
    if (!file_) return;
    file_->rewind();
    const std::string header = token_header(in_file_, token_bytes_);
    file_->write(header.data(), header.size());
    file_->finish();
    file_.reset();
    total_ += in_file_;
  }
  int64_t files() const { return files_; }
  int64_t total() const { return total_; }

 private:
  void begin() {
    file_ = std::make_unique<NewFile>(directory_ / fmt::format("tokens_{:06}.bin", files_++));
    in_file_ = 0;
    const std::string room = token_header(0, token_bytes_);
    file_->write(room.data(), room.size());
  }
  void write_some(std::span<const int32_t> tokens) {
    if (token_bytes_ == 2) {
      narrow_.assign(tokens.begin(), tokens.end());
      file_->write(narrow_.data(), 2 * narrow_.size());
    } else {
      file_->write(tokens.data(), tokens.size_bytes());
    }
    in_file_ += static_cast<int64_t>(tokens.size());
  }

  fs::path directory_;
  int token_bytes_;
  int64_t shard_tokens_, in_file_ = 0, files_ = 0, total_ = 0;
  std::unique_ptr<NewFile> file_;
  std::vector<uint16_t> narrow_;
};

bool is_of_tokens(const std::string& name) {
  return name == tokenizer::kTokenizerFile || (name.starts_with("tokens_") && name.ends_with(".bin"));
}

/// Where new files wait until all of them are complete. What a run that was killed has left is removed.
class Staging {
 public:
  explicit Staging(const std::string& directory)
      : directory_(directory), folder_(directory_ / ".new_tokens") {
    guarded([&] {
      fs::remove_all(folder_);
      fs::create_directories(folder_);
    });
  }
  ~Staging() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  const fs::path& folder() const { return folder_; }
  /// Puts them in the place of those that are there. The tokenizer comes last: without it nothing is
  /// complete.
  void publish() const {
    guarded([&] {
      std::vector<fs::path> old, shards;
      for (const auto& entry : fs::directory_iterator(directory_))
        if (is_of_tokens(entry.path().filename().string())) old.push_back(entry.path());
      for (const auto& path : old) fs::remove(path);
      for (const auto& entry : fs::directory_iterator(folder_))
        if (entry.path().filename() != tokenizer::kTokenizerFile) shards.push_back(entry.path());
      for (const auto& path : shards) fs::rename(path, directory_ / path.filename());
      fs::rename(folder_ / tokenizer::kTokenizerFile, directory_ / tokenizer::kTokenizerFile);
    });
  }

 private:
  template <class Action>
  void guarded(const Action& action) const {
    try {
      action();
    } catch (const fs::filesystem_error& error) {
      throw IoError(fmt::format("cannot write tokens to {}: {}", one_line(directory_.string()),
                                error.code().message()));
    }
  }

  fs::path directory_, folder_;
};

void require_place(const TokenizeOptions& options) {
  std::error_code error;
  fs::create_directories(options.directory, error);
  if (error)
    throw IoError(fmt::format("cannot make the folder {}: {}", one_line(options.directory), error.message()));
  for (const auto& entry : fs::directory_iterator(options.directory)) {
    if (!is_of_tokens(entry.path().filename().string())) continue;
    require(
        options.overwrite,
        fmt::format("{} is there already; pass --force to replace the folder's tokens, or name another --out",
                    one_line(entry.path().string())));
  }
}

tokenizer::Tokenizer find_tokenizer(const TokenizeOptions& options) {
  if (!options.tokenizer.empty()) return tokenizer::read_tokenizer(options.tokenizer);
  tokenizer::Learner learner;
  for (const auto& path : options.texts)
    read_pieces(path, options.most_inflated_bytes, tokenizer::last_division,
                [&](std::string_view piece) { learner.read(piece); });
  return learner.learn(options.vocabulary);
}

}  // namespace

TokenizeResult tokenize(const TokenizeOptions& options) {
  require(!options.texts.empty(), "expected a text, found none");
  require(options.shard_tokens >= 1 && options.shard_tokens <= INT32_MAX,
          fmt::format("expected 1 to {} tokens per file, found {}", INT32_MAX, options.shard_tokens));
  require_place(options);
  const tokenizer::Tokenizer tokenizer = find_tokenizer(options);
  const Staging staging(options.directory);
  TokenizeResult result{.vocabulary = tokenizer.size(), .token_bytes = tokenizer.size() <= 65536 ? 2 : 4};
  Shards shards(staging.folder(), result.token_bytes, options.shard_tokens);
  tokenizer::Encoder encoder(tokenizer);
  std::vector<int32_t> tokens;
  for (const auto& path : options.texts) {
    if (options.marks_documents && tokenizer.end_of_text())
      shards.write(std::array{*tokenizer.end_of_text()});
    int64_t position = 0;
    const auto encode = [&](std::string_view piece) {
      tokens.clear();
      const auto start = Clock::now();
      try {
        encoder.encode(piece, tokens);
      } catch (const DataError& error) {
        throw DataError(
            fmt::format("{}: in the piece from byte {} on: {}", one_line(path), position, error.what()));
      }
      result.encoding_seconds += std::chrono::duration<double>(Clock::now() - start).count();
      position += static_cast<int64_t>(piece.size());
      shards.write(tokens);
    };
    result.text_bytes += read_pieces(
        path, options.most_inflated_bytes,
        [&](std::string_view piece) { return division_for(tokenizer, piece); }, encode);
  }
  shards.finish();
  NewFile saved(staging.folder() / tokenizer::kTokenizerFile);
  const std::string text = tokenizer::to_json(tokenizer);
  saved.write(text.data(), text.size());
  saved.finish();
  staging.publish();
  result.tokens = shards.total();
  result.files = shards.files();
  return result;
}

}  // namespace lockstep::data
