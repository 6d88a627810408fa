#include "base/file_digest.h"

#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep {

struct FileDigest::State {
  XXH3_state_t xxh3;
  uint32_t crc32c = 0;
};

FileDigest::FileDigest() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh3); }
FileDigest::~FileDigest() = default;

void FileDigest::update(const void* data, size_t size_bytes) {
  XXH3_64bits_update(&state_->xxh3, data, size_bytes);
  state_->crc32c = crc32c(data, size_bytes, state_->crc32c);
}

FileChecksums FileDigest::checksums() const { return {state_->crc32c, XXH3_64bits_digest(&state_->xxh3)}; }

}  // namespace lockstep
