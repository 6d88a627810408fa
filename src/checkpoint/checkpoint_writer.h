#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"
#include "checkpoint/named_tensor.h"
#include "checkpoint/safetensors.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {

/// A checkpoint is complete and visible, but nobody knows whether it would survive a power failure.
struct NotDurableError : Error {
  NotDurableError(std::string checkpoint, const Error& cause);
  std::string path;  ///< of the checkpoint
};

/// Writes one checkpoint, `<directory>/step-%08d`, so that it is complete or invisible at every instant, also
/// across a power failure: everything is written and synced in `step-%08d.tmp`, the manifest last, then the
/// folder is renamed. A checkpoint of the same step is set aside as `step-%08d.previous` (which readers still
/// find) until then.
///
/// Several ranks may write, each with a writer of its own on a shared file system: one calls begin(), then
/// each writes its shards, then one commits with the records of all of them; the caller keeps these three
/// apart by barriers. One run at a time may write into a directory.
class CheckpointWriter {
 public:
  CheckpointWriter(std::string directory, int64_t step, FileSystem& files = posix_file_system());

  /// Clears what interrupted writers left behind, and makes the temporary folder. Throws IoError if fewer
  /// than `expected_bytes` are free. What is left of other steps and cannot be removed now, since a late rank
  /// still writes there, say, is left to the next writer.
  void begin(int64_t expected_bytes = 0);
  /// Writes "<kind>-0000<index>-of-0000<count>.safetensors"; `index` counts from 1. A tensor lies whole in
  /// one shard.
  FileRecord write_shard(FileKind kind, int index, int count, std::span<const NamedTensor> tensors);
  /// Makes the checkpoint visible. `manifest.files` holds the records of all shards; commit adds the model's
  /// index in the form that other programs read (model.safetensors.index.json). Returns the checkpoint's
  /// path. If it throws, the checkpoint is complete or invisible all the same. NotDurableError: it is
  /// complete and visible, and the one that it replaces is still there too.
  std::string commit(Manifest manifest);
  /// Deletes all but the newest `keep` complete checkpoints (0: keeps all) up to the one just committed,
  /// which is never deleted, nor is that of `best_step`, or, where that is not there, of the best step before
  /// it. Those of later steps belong to a run that was resumed further back: they are left alone, as are
  /// damaged ones, which a person should see.
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
