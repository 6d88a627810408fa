#pragma once

#include <cstdint>
#include <string>

#include "base/file_system.h"
#include "data/records/record_source.h"

namespace lockstep::data {

struct PackOptions {
  std::string directory;  ///< is made if it is not there
  PackImages images;
  int64_t shard_bytes = int64_t{256} << 20;  ///< about what a shard takes
  int threads = 0;                           ///< 0: as many as the host has cores
  bool overwrite = false;                    ///< replace records of another packing
  FileSystem* files = &posix_file_system();
};

struct PackResult {
  int64_t records[2] = {0, 0};  ///< of training, of evaluation
  int64_t left_out = 0;
  int64_t shards = 0, kept_shards = 0;  ///< the latter were there already
  int64_t bytes = 0;                    ///< of all shards
};

/// Packs the data of the options: writes shards, several at once, then the index. A shard or index has its
/// name only once it is complete. Shards that a packing of the same data left, if it was killed, are kept if
/// their bytes have their checksums. Throws ConfigError if the directory has records of other data or if
/// another process packs into it, and what open_datasets() and files throw.
PackResult pack_records(const DataOptions& data, const PackOptions& options);

}  // namespace lockstep::data
