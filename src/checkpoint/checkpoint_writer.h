#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/file_system.h"
#include "checkpoint/manifest.h"
#include "checkpoint/named_tensor.h"
#include "checkpoint/safetensors.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {

/// A checkpoint is complete and visible, but may not survive a power failure.
struct NotDurableError : Error {
  NotDurableError(std::string checkpoint, const Error& cause);
  std::string path;  ///< of the checkpoint
};

/// Writes one checkpoint, `<directory>/step-%08d`, so that it is complete or invisible at every moment, also
/// across a power failure. Everything is written and synced in `step-%08d.tmp`, the manifest last, then the
/// folder is renamed. Until then an older checkpoint of the same step is set aside as `step-%08d.previous`,
/// which readers still find.
///
/// Several ranks may write to a shared file system, each with its own writer. One rank calls begin(), then
/// each writes its shards, then one commits with the records of all; the caller separates these three phases
/// by barriers. One run at a time may write into a directory.
class CheckpointWriter {
 public:
  CheckpointWriter(std::string directory, int64_t step, FileSystem& files = posix_file_system());

  /// Removes what interrupted writers left behind, and makes the temporary folder. Throws IoError if fewer
  /// than `expected_bytes` are free. Remains of other steps that cannot be removed now, for example because a
  /// late rank still writes there, are left to the next writer.
  void begin(int64_t expected_bytes = 0);
  /// Writes "<kind>-0000<index>-of-0000<count>.safetensors"; `index` counts from 1. Each tensor is whole in
  /// one shard.
  FileRecord write_shard(FileKind kind, int index, int count, std::span<const NamedTensor> tensors);
  /// Makes the checkpoint visible and returns its path. `manifest.files` holds the records of all shards;
  /// commit() adds the index of the model that other programs read (model.safetensors.index.json), and the
  /// encodings. Even if it throws, the checkpoint is complete or invisible. NotDurableError: it is complete
  /// and visible, and the one that it replaces still exists.
  std::string commit(Manifest manifest);
  /// Deletes all but the newest `keep` complete checkpoints (0: keeps all) up to the one just committed.
  /// Never deletes that one, nor the one of `best_step` or, if it does not exist, of the best step before it.
  /// Checkpoints of later steps belong to a run that was resumed further back, and stay, as do damaged ones,
  /// which a person should see.
  void prune(int keep, int64_t best_step = -1);
  /// After a failure: removes the temporary folder as far as that is possible.
  void abandon() noexcept;

 private:
  void check_shards(const Manifest& manifest) const;
  FileRecord write_index(const Manifest& manifest);
  WrittenFile write_text(const std::string& name, const std::string& text);
  void clear_leftovers();
  void clear_leftover(const std::string& path);

  std::string directory_;
  int64_t step_;
  FileSystem& files_;
  std::string final_path_, temporary_path_;
};

}  // namespace lockstep::checkpoint
