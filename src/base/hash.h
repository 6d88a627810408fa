#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// XXH3, 64 bits.
uint64_t hash64(const void* data, size_t size_bytes, uint64_t seed = 0);
inline uint64_t hash64(std::string_view text, uint64_t seed = 0) {
  return hash64(text.data(), text.size(), seed);
}
/// Order-dependent combination of two hashes.
uint64_t hash_combine(uint64_t a, uint64_t b);
std::string to_hex(uint64_t hash);  ///< 16 lower-case digits

/// CRC-32C (Castagnoli), as used by TensorBoard's records and by checkpoints. Pass the previous value to
/// continue.
uint32_t crc32c(const void* data, size_t size_bytes, uint32_t previous = 0);
/// The same without the processor's instruction for it.
uint32_t crc32c_by_tables(const void* data, size_t size_bytes, uint32_t previous = 0);

}  // namespace lockstep
