#include "data/known_files.h"

#include <fmt/format.h>

#include <array>

#include "base/hash.h"
#include "data/byte_source.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr std::array<KnownFile, 2> kMnist{
    {{"t10k-images-idx3-ubyte.gz",
      "https://storage.googleapis.com/cvdf-datasets/mnist/t10k-images-idx3-ubyte.gz", 7840016,
      0x6aa8aa9c0102c17c},
     {"t10k-labels-idx1-ubyte.gz",
      "https://storage.googleapis.com/cvdf-datasets/mnist/t10k-labels-idx1-ubyte.gz", 10008,
      0x63c4bd8be7e7204f}}};
constexpr std::array<KnownFile, 1> kShakespeare{
    {{"tinyshakespeare.txt",
      "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt", 1115394,
      0x6572a3fb9fde75d3}}};

}  // namespace

std::span<const KnownFile> known_files(std::string_view set) {
  if (set == "mnist") return kMnist;
  if (set == "shakespeare") return kShakespeare;
  throw InternalError(fmt::format("there is no data set {}", set));
}

void require_known(const KnownFile& file, const std::string& path) {
  const auto bytes = read_all_bytes(path);
  const auto size = static_cast<int64_t>(bytes.size());
  if (size != file.size_bytes)
    throw DataError(
        fmt::format("{}: expected the {} bytes of {}, found {}: the file is damaged, or another one", path,
                    file.size_bytes, file.name, size));
  if (const uint64_t hash = hash64(bytes.data(), bytes.size()); hash != file.hash)
    throw DataError(
        fmt::format("{}: expected {} with the checksum {}, found {}: the file is damaged, or another one",
                    path, file.name, to_hex(file.hash), to_hex(hash)));
}

}  // namespace lockstep::data
