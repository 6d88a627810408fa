#include "base/hash.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <cstring>

namespace lockstep {
namespace {

std::array<std::array<uint32_t, 256>, 8> make_crc_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0u);  // reflected polynomial
    tables[0][byte] = crc;
  }
  for (size_t table = 1; table < 8; ++table)
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t previous = tables[table - 1][byte];
      tables[table][byte] = (previous >> 8) ^ tables[0][previous & 0xFF];
    }
  return tables;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_by_instruction(const unsigned char* bytes,
                                                                 size_t size_bytes, uint32_t previous) {
  uint64_t crc = static_cast<uint32_t>(~previous);
  for (; size_bytes >= 8; size_bytes -= 8, bytes += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes, sizeof word);
    crc = __builtin_ia32_crc32di(crc, word);
  }
  auto narrow = static_cast<uint32_t>(crc);
  while (size_bytes-- > 0) narrow = __builtin_ia32_crc32qi(narrow, *bytes++);
  return ~narrow;
}
#endif

}  // namespace

uint64_t hash64(const void* data, size_t size_bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, size_bytes, seed);
}

uint64_t hash_combine(uint64_t a, uint64_t b) {
  const uint64_t pair[2] = {a, b};
  return XXH3_64bits(pair, sizeof pair);
}

std::string to_hex(uint64_t hash) { return fmt::format("{:016x}", hash); }

uint32_t crc32c(const void* data, size_t size_bytes, uint32_t previous) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction)
    return crc32c_by_instruction(static_cast<const unsigned char*>(data), size_bytes, previous);
#endif
  return crc32c_by_tables(data, size_bytes, previous);
}

uint32_t crc32c_by_tables(const void* data, size_t size_bytes, uint32_t previous) {
  // Slicing by eight bytes: Kounavis and Berry, "A systematic approach to building high performance
  // software-based CRC generators" (2005).
  static const auto tables = make_crc_tables();
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint32_t crc = ~previous;
  while (size_bytes >= 8) {
    const uint32_t low = crc ^ (uint32_t{bytes[0]} | uint32_t{bytes[1]} << 8 | uint32_t{bytes[2]} << 16 |
                                uint32_t{bytes[3]} << 24);
    crc = tables[7][low & 0xFF] ^ tables[6][(low >> 8) & 0xFF] ^ tables[5][(low >> 16) & 0xFF] ^
          tables[4][low >> 24] ^ tables[3][bytes[4]] ^ tables[2][bytes[5]] ^ tables[1][bytes[6]] ^
          tables[0][bytes[7]];
    bytes += 8;
    size_bytes -= 8;
  }
  while (size_bytes-- > 0) crc = (crc >> 8) ^ tables[0][(crc ^ *bytes++) & 0xFF];
  return ~crc;
}

}  // namespace lockstep
