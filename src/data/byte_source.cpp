#include "data/byte_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/host_memory.h"
#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr size_t kInputBytes = 64 * 1024;
// Deflate codes at most 258 bytes in 2 bits, so that no stream grows by more than 1032 (zlib's technical
// notes).
constexpr int64_t kMostInflation = 1032;

}  // namespace

struct ByteSource::Inflater {
  z_stream stream{};
  std::vector<uint8_t> input = std::vector<uint8_t>(kInputBytes);
  bool member_open = true;  // inside a gzip member, whose end has not been seen
  int64_t bytes_in = 0, bytes_out = 0;
  /// Of the file: the first byte that has not been inflated.
  int64_t place() const { return bytes_in - int64_t{stream.avail_in}; }
  ~Inflater() { inflateEnd(&stream); }
};

ByteSource::ByteSource(const std::string& path, int64_t most_inflated)
    : path_(path),
      file_(nullptr, std::fclose),
      most_inflated_(most_inflated > 0 ? most_inflated : default_most_inflated()) {
  // Without O_NONBLOCK opening a pipe would wait for its writer, perhaps for ever.
  if (const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); descriptor >= 0)
    file_.reset(::fdopen(descriptor, "rb"));
  struct stat info {};
  if (!file_ || fstat(fileno(file_.get()), &info) != 0)
    throw IoError(fmt::format("cannot open {}: {}; check the file name and the data directory (--data-dir)",
                              path, std::strerror(errno)));
  if (!S_ISREG(info.st_mode)) throw IoError(fmt::format("cannot read {}: it is not a regular file", path));
  most_bytes_ = info.st_size;

  uint8_t magic[2] = {};
  const bool gzip = read_raw(magic, 2) == 2 && magic[0] == 0x1f && magic[1] == 0x8b;
  std::rewind(file_.get());
  if (!gzip) return;
  inflater_ = std::make_unique<Inflater>();
  if (inflateInit2(&inflater_->stream, 15 + 16) != Z_OK)  // 15: largest window; 16: gzip only
    throw IoError(fmt::format("cannot read {}: zlib found no memory", path));
  if (__builtin_mul_overflow(most_bytes_, kMostInflation, &most_bytes_)) most_bytes_ = INT64_MAX;
}

void ByteSource::require_may_hold(int64_t size_bytes) const {
  if (!is_gzip() || size_bytes <= most_inflated_) return;
  throw DataError(fmt::format(
      "{}: its header says that its gzip data become {} bytes, more than the {} that "
      "data.most_inflated_bytes allows: raise that, or gunzip the file, if the header is right; otherwise it "
      "is damaged, get it again",
      path_, size_bytes, most_inflated_));
}

ByteSource::~ByteSource() = default;

int64_t ByteSource::read(void* destination, int64_t size_bytes) {
  return inflater_ ? read_inflated(destination, size_bytes) : read_raw(destination, size_bytes);
}

int64_t ByteSource::read_raw(void* destination, int64_t size_bytes) {
  const size_t got = std::fread(destination, 1, static_cast<size_t>(size_bytes), file_.get());
  if (std::ferror(file_.get())) throw IoError(fmt::format("cannot read {}: {}", path_, std::strerror(errno)));
  return static_cast<int64_t>(got);
}

int64_t ByteSource::read_inflated(void* destination, int64_t size_bytes) {
  auto& stream = inflater_->stream;
  auto* out = static_cast<uint8_t*>(destination);
  int64_t done = 0;
  while (done < size_bytes) {
    if (stream.avail_in == 0) {
      stream.next_in = inflater_->input.data();
      stream.avail_in = static_cast<uInt>(read_raw(inflater_->input.data(), kInputBytes));
      inflater_->bytes_in += stream.avail_in;
      if (stream.avail_in == 0) {
        if (inflater_->member_open)
          throw DataError(
              fmt::format("{}: expected gzip data up to its checksum, found the end of the file after {} "
                          "inflated bytes: the file is truncated, get it again",
                          path_, done));
        return done;
      }
    }
    if (!inflater_->member_open) {  // a gzip file may hold several members, one behind the other
      inflateReset(&stream);
      inflater_->member_open = true;
    }
    const auto room = static_cast<uInt>(std::min<int64_t>(size_bytes - done, 1 << 30));
    stream.next_out = out + done;
    stream.avail_out = room;
    const int status = inflate(&stream, Z_NO_FLUSH);
    done += room - stream.avail_out;
    inflater_->bytes_out += room - stream.avail_out;
    if (inflater_->bytes_out > most_inflated_)
      throw DataError(fmt::format(
          "{}: at byte {} its gzip data has become more than {} bytes: it was made to fill the memory, or is "
          "larger than data.most_inflated_bytes (of data tokens: --most-inflated-bytes) allows; raise that "
          "if "
          "the file is right, or gunzip it",
          path_, inflater_->place(), most_inflated_));
    if (status == Z_STREAM_END)
      inflater_->member_open = false;
    else if (status != Z_OK && status != Z_BUF_ERROR)
      throw DataError(
          fmt::format("{}: expected gzip data, found damage after {} inflated bytes ({}); get it again",
                      path_, done, stream.msg ? stream.msg : "zlib gives no reason"));
  }
  return done;
}

int64_t default_most_inflated() {
  static const int64_t bytes = host_memory_bytes() / 4;
  return bytes;
}

std::vector<uint8_t> read_all_bytes(const std::string& path, int64_t most_inflated) {
  ByteSource source(path, most_inflated);
  std::vector<uint8_t> bytes;
  constexpr int64_t kStep = 1 << 20;
  for (;;) {
    const size_t before = bytes.size();
    bytes.resize(before + kStep);
    const int64_t got = source.read(bytes.data() + before, kStep);
    bytes.resize(before + static_cast<size_t>(got));
    if (got < kStep) return bytes;
  }
}

std::string path_in(const std::string& directory, const std::string& name) {
  return (std::filesystem::path(directory) / name).string();
}

std::string data_file(const DataOptions& options, const std::string& name) {
  const std::string first = path_in(options.directory, name);
  std::error_code unknown;
  if (!options.other_directory || std::filesystem::exists(first, unknown)) return first;
  const std::string second = path_in(*options.other_directory, name);
  if (std::filesystem::exists(second, unknown)) return second;
  throw IoError(
      fmt::format("there is no {}, and no {} in the current folder; name the folder of the data (--data-dir)",
                  first, second));
}

}  // namespace lockstep::data
