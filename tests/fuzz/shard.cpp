#include "data/records/shard.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/hash.h"
#include "data/records/shard_writer.h"
#include "fuzz/fuzz.h"
#include "lockstep/error.h"

namespace lockstep::fuzz {
namespace {

/// With the checksum that a changed table would need, so that what is behind it is reached, too; nothing if
/// there is no room for a table.
std::string with_its_checksum(std::string_view bytes) {
  data::ShardFooter footer;
  if (bytes.size() < sizeof footer) return {};
  const size_t end = bytes.size() - sizeof footer;
  std::memcpy(&footer, bytes.data() + end, sizeof footer);
  if (footer.table_offset > end) return {};
  footer.table_hash = hash64(bytes.substr(footer.table_offset, end - footer.table_offset));
  std::string fixed(bytes);
  std::memcpy(fixed.data() + end, &footer, sizeof footer);
  return fixed;
}

void read_all(const std::string& path) {
  const data::Shard shard(path);
  shard.has_its_hash();
  std::vector<uint8_t> copy;
  for (int64_t i = 0; i < shard.count(); ++i) {
    shard.name(i);
    // Of a few bytes, several entries can be of all.
    copy.resize(shard.entry(i).size_bytes);
    const auto state = shard.read(i, [&](std::span<const uint8_t> bytes) noexcept {
      if (!bytes.empty()) std::memcpy(copy.data(), bytes.data(), bytes.size());
    });
    static_cast<void>(state);
  }
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string path = "/dev/shm/lockstep-fuzz-shard-" + std::to_string(::getpid());
  std::vector<std::string> all;
  for (const int records : {0, 1, 3}) {
    data::ShardWriter writer(posix_file_system(), path);
    for (int i = 0; i < records; ++i) {
      const std::vector<uint8_t> bytes(static_cast<size_t>(10 * i + 5), uint8_t{7});
      writer.add({.label = i, .height = 1, .width = 1}, "a/" + std::to_string(i), bytes);
    }
    writer.finish({.pack = 9});
    std::ifstream file(path, std::ios::binary);
    all.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    std::filesystem::remove(path);
  }
  return all;
}

void parse(std::string_view bytes) {
  try {
    read_all(file_of(bytes));
  } catch (const Error&) {
    if (const std::string fixed = with_its_checksum(bytes); !fixed.empty()) read_all(file_of(fixed));
  }
}

}  // namespace lockstep::fuzz
