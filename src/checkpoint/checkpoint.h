#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/named_tensor.h"
#include "checkpoint/safetensors.h"
#include "tensor/part.h"

namespace lockstep::checkpoint {

/// "step-00000042" for 42, and back; nothing for any other name.
std::string checkpoint_folder_name(int64_t step);
std::optional<int64_t> step_of_folder_name(const std::string& name);

/// Ends the names of moving averages of weights among the optimizer state: "fc1.weight.ema".
inline constexpr std::string_view kAverageSuffix = ".ema";

/// What rounding the gradients of one use of a parameter has lost of a leaf: error feedback's residual.
struct ResidualName {
  std::string parameter;
  int use = 0, leaf = 0;
  auto operator<=>(const ResidualName&) const = default;
};
/// "fc1.weight.residual.0.3" for use 0 and leaf 3, among the optimizer state; and back. Nothing for names of
/// other state, which end with a word.
std::string to_text(const ResidualName& name);
std::optional<ResidualName> residual_name_from(std::string_view text);

/// Which numbers of a checkpoint are to be a model's weights.
enum class Weights { parameters, averages };

/// Called before each piece that is read: a few hundred KiB, or one tensor. Large checkpoints take a while,
/// and the watchdog must see progress. May be empty.
using BeforeRead = std::function<void()>;

/// Whether a folder has a manifest, or the name of one that should.
bool claims_to_be_checkpoint(const std::string& path);

struct FoundCheckpoint {
  int64_t step = 0;
  std::string path;
};
/// The checkpoints that claim to be complete, newest first, without opening them. Empty if there is no
/// directory.
std::vector<FoundCheckpoint> find_checkpoints(const std::string& directory);

/// Reads the manifest of a checkpoint, and checks that all files exist with the sizes that it states, without
/// reading them, apart from the encodings. Throws CheckpointError if something is missing or does not fit.
Manifest read_manifest(const std::string& path);

/// A completely verified checkpoint: the manifest's hash, then size and both checksums of every file, then
/// that the tensors are those of the manifest. So no part of a damaged checkpoint is ever used.
/// Thread-safety: const methods are safe from several threads.
class Checkpoint {
 public:
  /// Throws CheckpointError, which names the file and what is wrong with it.
  explicit Checkpoint(const std::string& path, const BeforeRead& before_read = {});

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  std::vector<TensorRecord> tensors(FileKind kind) const;  ///< each once, whole, however it is cut

  /// Throws CheckpointError listing every tensor that is missing, left over, or of another type or shape.
  void require_exactly(FileKind kind, std::span<const TensorRecord> expected) const;
  /// Loads tensors, or parts of them, by name: a rank asks for what it holds. They may be in several files,
  /// divided otherwise. Throws CheckpointError as above for tensors that are missing or do not fit, before
  /// anything is written.
  void load(FileKind kind, std::span<const TensorDestination> destinations,
            const BeforeRead& before_read = {}) const;
  /// tensor_hash() of a tensor that the checkpoint has, which is read piece by piece. Throws CheckpointError.
  uint64_t hash_of(FileKind kind, const TensorRecord& record, const BeforeRead& before_read = {}) const;
  /// load() of a model's parameters and statistics by their names. Averages take the places of the weights
  /// that have one; frozen weights and statistics have none. Throws ConfigError if none at all has one.
  void load_weights(Weights weights, std::span<const TensorDestination> destinations,
                    const BeforeRead& before_read = {}) const;

 private:
  struct Shard {
    FileKind kind;
    SafetensorsFile file;
  };
  /// A part of a tensor, packed in one file.
  struct StoredPart {
    tensor::Part part;
    const SafetensorsFile* file;
    const SafetensorsFile::Entry* entry;
  };
  struct Tensor {
    TensorRecord record;            ///< of the whole
    std::vector<StoredPart> parts;  ///< which have each element once
  };
  void require_complete(const Tensor& tensor) const;
  static void read_common(const TensorDestination& destination, const StoredPart& stored,
                          const BeforeRead& before_read);
  const Tensor* find(FileKind kind, const std::string& name) const;  ///< null if there is none
  /// What is wrong with the checkpoint's tensor of this name; "" if nothing is.
  std::string mismatch(FileKind kind, const TensorRecord& expected) const;

  std::string path_;
  Manifest manifest_;
  std::deque<Shard> shards_;  // whose places stay
  std::map<std::pair<FileKind, std::string>, Tensor> tensors_;
};

/// Opens the newest valid checkpoint. Invalid ones are skipped and reported with the reason. Nothing if none
/// is valid; if some were reported, the caller should say so before it starts afresh.
std::optional<Checkpoint> load_latest_valid(
    const std::string& directory,
    const std::function<void(const std::string& path, const std::string& reason)>& on_refused,
    const BeforeRead& before_read = {});

}  // namespace lockstep::checkpoint
