#include <zlib.h>

#include "data/byte_source.h"
#include "fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

std::string gzip_of(std::string text) {
  std::string out(text.size() + 64, '\0');
  z_stream stream{};
  constexpr int kGzip = 15 + 16;
  deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(text.data());
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace

std::vector<std::string> seeds() {
  return {"plain", gzip_of("lockstep"), gzip_of("one member") + gzip_of("and another")};
}

void parse(std::string_view bytes) {
  // A few bytes can stand for gigabytes; some of them are enough.
  data::ByteSource source(file_of(bytes));
  std::vector<uint8_t> piece(4096);
  for (int i = 0; i < 64 && source.read(piece.data(), 4096) == 4096; ++i) continue;
}

}  // namespace lockstep::fuzz
