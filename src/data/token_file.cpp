#include "data/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/hash.h"
#include "data/file_list.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

// llm.c, dev/data/data_common.py.
constexpr int64_t kHeaderBytes = 256 * 4;
struct HeaderRow {
  int32_t magic, version;
  int token_bytes;
};
constexpr std::array<HeaderRow, 2> kHeaders{{{20240520, 1, 2}, {20240801, 7, 4}}};
constexpr int32_t kEvaluationMagic = 20240522;

constexpr int64_t kBlockTokens = 1 << 18;
// More tokens beyond the vocabulary are no damage, but another vocabulary.
constexpr size_t kMostDamaged = 1 << 20;

int32_t word_of(std::string_view head, size_t index) {
  int32_t word = 0;
  std::memcpy(&word, head.data() + 4 * index, 4);
  return word;
}

TokenLayout layout_by_header(std::string_view head, const HeaderRow& row, int64_t size_bytes,
                             const std::string& name) {
  const int64_t count = word_of(head, 2);
  if (word_of(head, 1) != row.version)
    throw DataError(fmt::format("{}: expected version {} in the header (byte 4), found {}", name, row.version,
                                word_of(head, 1)));
  if (count < 0 || kHeaderBytes + count * row.token_bytes != size_bytes)
    throw DataError(
        fmt::format("{}: its header (byte 8) says {} tokens of {} bytes after {} bytes, but the file "
                    "has {} bytes: it is damaged, or not complete",
                    name, count, row.token_bytes, kHeaderBytes, size_bytes));
  return {kHeaderBytes, row.token_bytes, count};
}

/// Without a header, tokens of four bytes look like tokens of two of which every second one, the upper half,
/// is small. REQUIRES: `head` is the beginning of a file without a header.
enum class Width { two, four, unclear };
Width width_of(std::string_view head) {
  constexpr size_t kLeastTokens = 32;        // fewer may be so by chance
  constexpr uint16_t kLargeVocabulary = 64;  // of upper halves: four million tokens
  const size_t pairs = head.size() / 4;
  if (pairs < kLeastTokens) return Width::two;
  uint16_t lower = 0, upper = 0;
  for (size_t i = 0; i < pairs; ++i) {
    const auto pair = static_cast<uint32_t>(word_of(head, i));
    lower = std::max(lower, static_cast<uint16_t>(pair));
    upper = std::max(upper, static_cast<uint16_t>(pair >> 16));
  }
  if (upper == 0) return lower > 0 ? Width::four : Width::two;
  return upper < kLargeVocabulary && lower >= 256 * kLargeVocabulary ? Width::unclear : Width::two;
}

struct Looked {
  int64_t largest;           // below the vocabulary; -1: there is none
  int64_t above = 0;         // tokens that are not below the vocabulary
  int64_t first_above = -1;  // -1: there is none
};

/// REQUIRES: count > 0.
template <class Token>
Looked look_at(const Token* tokens, int64_t count, int64_t vocabulary) {
  Token largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, tokens[i]);
  if (int64_t{largest} < vocabulary) return {largest};
  const auto above = [&](Token token) { return int64_t{token} >= vocabulary; };
  Looked looked{-1, std::count_if(tokens, tokens + count, above),
                std::find_if(tokens, tokens + count, above) - tokens};
  for (int64_t i = 0; i < count; ++i)
    if (!above(tokens[i])) looked.largest = std::max(looked.largest, int64_t{tokens[i]});
  return looked;
}

}  // namespace

TokenLayout token_layout_of(std::string_view head, int64_t size_bytes, TokenFormat format,
                            const std::string& name) {
  const bool has_words = head.size() >= 12;
  const int32_t magic = has_words ? word_of(head, 0) : 0;
  const bool may_have_header = format == TokenFormat::automatic || format == TokenFormat::llmc;
  if (may_have_header && has_words) {
    for (const auto& row : kHeaders)
      if (row.magic == magic) return layout_by_header(head, row, size_bytes, name);
    if (magic == kEvaluationMagic)
      throw DataError(fmt::format("{}: these are llm.c's multiple-choice questions, not a text", name));
  }
  if (format == TokenFormat::llmc)
    throw DataError(fmt::format("{}: expected llm.c's header, which begins with {} or {}, found {} at byte 0",
                                name, kHeaders[0].magic, kHeaders[1].magic, magic));
  const int token_bytes = format == TokenFormat::uint32 ? 4 : 2;
  if (size_bytes % token_bytes != 0)
    throw DataError(fmt::format("{}: expected tokens of {} bytes, found {} bytes: {} after byte {}", name,
                                token_bytes, size_bytes, size_bytes % token_bytes,
                                size_bytes / token_bytes * token_bytes));
  return {0, token_bytes, size_bytes / token_bytes};
}

TokenFile::TokenFile(const std::string& path, TokenFormat format, int64_t vocabulary, BeyondVocabulary beyond)
    : path_(path) {
  if (path.ends_with(".gz"))
    throw DataError(fmt::format("{}: tokens are read at any place, which compression prevents; gunzip it",
                                one_line(path)));
  // Without O_NONBLOCK opening a pipe would wait for its writer.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor_ < 0 || ::fstat(descriptor_, &opened_) != 0) {
    const int problem = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    throw IoError(fmt::format("cannot open {}: {}; check the file name and the data directory (--data-dir)",
                              one_line(path), std::strerror(problem)));
  }
  try {
    if (!S_ISREG(opened_.st_mode))
      throw IoError(fmt::format("cannot read {}: it is not a regular file", one_line(path)));
    std::string head(static_cast<size_t>(std::min<int64_t>(opened_.st_size, kHeaderBytes)), '\0');
    read_bytes(head.data(), static_cast<int64_t>(head.size()), 0);
    layout_ = token_layout_of(head, opened_.st_size, format, one_line(path));
    if (format == TokenFormat::automatic && layout_.header_bytes == 0 && opened_.st_size % 4 == 0)
      find_width();
    read_through(vocabulary, beyond);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

TokenFile::~TokenFile() { ::close(descriptor_); }

void TokenFile::find_width() {
  std::string head(static_cast<size_t>(std::min<int64_t>(opened_.st_size, 1 << 17)), '\0');
  read_bytes(head.data(), static_cast<int64_t>(head.size()), 0);
  const Width width = width_of(head);
  if (width == Width::unclear)
    throw DataError(
        fmt::format("{}: it has no header, and its tokens may have two bytes or four; say which: "
                    "data.tokens.format: UINT16 or UINT32",
                    one_line(path_)));
  if (width == Width::four) layout_ = {0, 4, opened_.st_size / 4};
}

void TokenFile::read_through(int64_t vocabulary, BeyondVocabulary beyond) {
  if (vocabulary == 0) vocabulary = int64_t{INT32_MAX} + 1;  // models' tokens are int32
  std::vector<uint32_t> block(static_cast<size_t>(std::min(kBlockTokens, layout_.count)));
  identity_ = hash64(&layout_.token_bytes, sizeof layout_.token_bytes);
  int64_t all_above = 0, first_above = -1;
  for (int64_t begin = 0; begin < layout_.count; begin += kBlockTokens) {
    const int64_t count = std::min(kBlockTokens, layout_.count - begin), bytes = count * layout_.token_bytes;
    read_bytes(block.data(), bytes, layout_.header_bytes + begin * layout_.token_bytes);
    identity_ = hash_combine(identity_, hash64(block.data(), static_cast<size_t>(bytes)));
    const auto [largest, above, first] =
        layout_.token_bytes == 2 ? look_at(reinterpret_cast<const uint16_t*>(block.data()), count, vocabulary)
                                 : look_at(block.data(), count, vocabulary);
    if (above > 0 && all_above == 0) first_above = begin + first;
    all_above += above;
    largest_ = std::max(largest_, largest);
    if (all_above > 0 && beyond == BeyondVocabulary::fail) break;
    if (above == 0 || beyond != BeyondVocabulary::list) continue;
    const auto token_at = [&](int64_t i) {
      return layout_.token_bytes == 2 ? int64_t{reinterpret_cast<const uint16_t*>(block.data())[i]}
                                      : int64_t{block[static_cast<size_t>(i)]};
    };
    for (int64_t i = first; i < count; ++i)
      if (token_at(i) >= vocabulary) damaged_.push_back(begin + i);
    if (damaged_.size() > kMostDamaged)
      throw DataError(fmt::format(
          "{}: more than {} tokens are not below {}, the first at byte {}: the file is of another "
          "vocabulary, or has tokens of another width (data.tokens.format)",
          one_line(path_), kMostDamaged, vocabulary, byte_of(damaged_.front())));
  }
  if (all_above > 0 && beyond != BeyondVocabulary::list)
    throw DataError(fmt::format(
        "{}: token {} (byte {}) is not below {}{}: the file is damaged, is of another vocabulary, or has "
        "tokens "
        "of another width (data.tokens.format)",
        one_line(path_), first_above, byte_of(first_above), vocabulary,
        beyond == BeyondVocabulary::count && all_above > 1 ? fmt::format(", nor are {} others", all_above - 1)
                                                           : ""));
  require_unchanged();
}

void TokenFile::read_bytes(void* to, int64_t bytes, int64_t offset) const {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t got =
        ::pread(descriptor_, static_cast<char*>(to) + done, static_cast<size_t>(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw IoError(
          fmt::format("cannot read {} at byte {}: {}", one_line(path_), offset + done, std::strerror(errno)));
    if (got == 0)
      throw DataError(
          fmt::format("{}: expected bytes up to {}, but the file now ends at byte {}: it was "
                      "changed while it was read",
                      one_line(path_), offset + bytes, offset + done));
    done += got;
  }
}

void TokenFile::require_unchanged() const {
  struct stat now {};
  if (::fstat(descriptor_, &now) == 0 && now.st_size == opened_.st_size &&
      now.st_mtim.tv_sec == opened_.st_mtim.tv_sec && now.st_mtim.tv_nsec == opened_.st_mtim.tv_nsec)
    return;
  throw DataError(fmt::format("{}: the file was changed while it was read", one_line(path_)));
}

void TokenFile::read(int64_t begin, std::span<int32_t> to) const {
  const auto count = static_cast<int64_t>(to.size());
  const int64_t bytes = count * layout_.token_bytes;
  // The rear of the destination holds narrow tokens until they are widened, from the front.
  auto* rear = reinterpret_cast<std::byte*>(to.data()) + (4 * count - bytes);
  read_bytes(rear, bytes, layout_.header_bytes + begin * layout_.token_bytes);
  require_unchanged();
  if (layout_.token_bytes == 4) return;
  for (int64_t i = 0; i < count; ++i) {
    uint16_t token = 0;
    std::memcpy(&token, rear + 2 * i, 2);
    to[static_cast<size_t>(i)] = token;
  }
}

std::string token_header(int64_t count, int token_bytes) {
  const HeaderRow& row = kHeaders[token_bytes == 2 ? 0 : 1];
  std::array<int32_t, 256> words{};
  words[0] = row.magic;
  words[1] = row.version;
  words[2] = static_cast<int32_t>(count);
  return {reinterpret_cast<const char*>(words.data()), sizeof words};
}

}  // namespace lockstep::data
