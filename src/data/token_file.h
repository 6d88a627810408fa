#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

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

/// A file of tokens. It is read as samples are asked for, so that memory does not grow with it: by pread, not
/// mmap, because a mapped file that is cut short ends the process. Thread-safe.
class TokenFile : public TokenSequence {
 public:
  /// Reads all of it once. Throws IoError if it cannot be read, and DataError, which names the token and its
  /// byte, if a token is not below `vocabulary` (0: any): as soon as it is found, or with `counts_all` at the
  /// end, with how many others are not.
  TokenFile(const std::string& path, TokenFormat format, int64_t vocabulary, bool counts_all = false);
  ~TokenFile() override;
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t count() const override { return layout_.count; }
  int64_t largest() const { return largest_; }     ///< -1 if it has no tokens
  uint64_t identity() const { return identity_; }  ///< of its tokens
  void read(int64_t begin, std::span<int32_t> to) const override;

 private:
  void find_width();
  void read_through(int64_t vocabulary, bool counts_all);
  void read_bytes(void* to, int64_t bytes, int64_t offset) const;
  void require_unchanged() const;

  std::string path_;
  int descriptor_ = -1;
  struct stat opened_ {};
  TokenLayout layout_;
  int64_t largest_ = -1;
  uint64_t identity_ = 0;
};

/// The bytes of llm.c's header for `count` tokens of 2 or 4 bytes.
std::string token_header(int64_t count, int token_bytes);

}  // namespace lockstep::data
