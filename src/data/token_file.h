#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/token_options.h"
#include "data/token_windows.h"

namespace lockstep::data {

/// How a file of tokens is written.
struct TokenLayout {
  int64_t header_bytes = 0;
  int token_bytes = 2;  ///< 2 or 4, unsigned, little-endian
  int64_t count = 0;
};

/// Of a file of `size_bytes` that begins with `head` (its first 1,024 bytes, or all of it): llm.c's header
/// says it; without one, `format` says how wide tokens are. Throws DataError, which begins with `name`, for a
/// header that is damaged, and for a size that does not fit.
TokenLayout token_layout_of(std::string_view head, int64_t size_bytes, TokenFormat format,
                            const std::string& name);

/// What becomes of tokens that are not below the vocabulary: the first one is refused as soon as it is found;
/// it is refused at the end, with how many others there are; or all are listed.
enum class BeyondVocabulary { fail, count, list };

/// A file of tokens. It is read as samples are asked for, so that memory does not grow with it: by pread, not
/// mmap, because a mapped file that is cut short ends the process. Thread-safe.
class TokenFile : public TokenSequence {
 public:
  /// Reads all of it once. Throws IoError if it cannot be read, and DataError, which names the token and its
  /// byte, if a token is not below `vocabulary` (0: any) and is not listed, or if so many would be listed
  /// that the file is another one.
  TokenFile(const std::string& path, TokenFormat format, int64_t vocabulary,
            BeyondVocabulary beyond = BeyondVocabulary::fail);
  ~TokenFile() override;
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t count() const override { return layout_.count; }
  int64_t largest() const { return largest_; }  ///< of those below the vocabulary; -1 if there are none
  const std::vector<int64_t>& damaged() const override { return damaged_; }
  int64_t byte_of(int64_t token) const { return layout_.header_bytes + token * layout_.token_bytes; }
  uint64_t identity() const { return identity_; }  ///< of its tokens
  void read(int64_t begin, std::span<int32_t> to) const override;

 private:
  void find_width();
  void read_through(int64_t vocabulary, BeyondVocabulary beyond);
  void read_bytes(void* to, int64_t bytes, int64_t offset) const;
  void require_unchanged() const;

  std::string path_;
  int descriptor_ = -1;
  struct stat opened_ {};
  TokenLayout layout_;
  int64_t largest_ = -1;
  std::vector<int64_t> damaged_;
  uint64_t identity_ = 0;
};

/// The bytes of llm.c's header for `count` tokens of 2 or 4 bytes.
std::string token_header(int64_t count, int token_bytes);

}  // namespace lockstep::data
