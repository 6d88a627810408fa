#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/manifest.h"
#include "checkpoint/named_tensor.h"
#include "checkpoint/state_hash.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {

// A checkpoint that several ranks write. Each rank writes its share of the tensors and reports to rank 0,
// which commits when it has the reports of all ranks.

/// One rank's tensors, and their shards of the checkpoint.
struct CheckpointShare {
  struct Shard {
    int index = 0;  ///< from 1; 0: this rank has no tensors of this kind
    int count = 0;
  };
  std::vector<NamedTensor> parameters, state;  ///< borrowed memory
  Shard model, optimizer;
};

/// The result of writing a share: what was written, and the hashes of its chunks; or why it failed.
struct ShareReport {
  std::vector<FileRecord> files;
  std::vector<TensorChunks> parameter_hashes, state_hashes;
  std::string error;  ///< empty: all is written
  ExitCode code = ExitCode::done;
  bool operator==(const ShareReport&) const = default;
};
using ShareReports = std::map<int, ShareReport>;  ///< by rank
std::string to_text(const ShareReport& report);
ShareReport share_report_from_text(std::string_view text);

/// Writes and syncs the shards of one rank. Failures become part of the report, so that rank 0 learns of
/// them.
ShareReport write_share(CheckpointWriter& writer, const CheckpointShare& share) noexcept;

/// How a save ended.
struct SaveOutcome {
  int64_t step = 0;
  std::string path;   ///< of the checkpoint; empty if there is none
  std::string error;  ///< why there is none; beside a path: what went wrong all the same, namely making it
                      ///< durable or deleting older ones
  ExitCode code = ExitCode::done;
  bool operator==(const SaveOutcome&) const = default;
};
std::string to_text(const SaveOutcome& outcome);
SaveOutcome save_outcome_from_text(std::string_view text);

/// On rank 0, with the reports of all ranks that have a share: fills in hashes and records, commits, and
/// prunes to `keep`. If any rank failed, removes the temporary folder instead: REQUIRES that none of them
/// writes any more.
SaveOutcome conclude_save(CheckpointWriter& writer, Manifest manifest, const ShareReports& reports,
                          int keep) noexcept;

}  // namespace lockstep::checkpoint
