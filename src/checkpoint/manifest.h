#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file_digest.h"
#include "checkpoint/named_tensor.h"

namespace lockstep::checkpoint {

/// The contents of a checkpoint's file: parameters and statistics, optimizer state ("<parameter>.<slot>"),
/// the index by which other programs find the parameters, or what turned raw data into numbers.
enum class FileKind { model, optimizer, index, encoding };
/// Whether files of this kind hold tensors.
constexpr bool has_tensors(FileKind kind) { return kind == FileKind::model || kind == FileKind::optimizer; }
std::string_view name_of(FileKind kind);

struct FileRecord {
  std::string name;  ///< plain, within the checkpoint's folder
  FileKind kind = FileKind::model;
  int64_t size_bytes = 0;
  FileChecksums checksums;
  std::vector<TensorRecord> tensors;
  bool operator==(const FileRecord&) const = default;
};

/// "trainer.seed" -> "7", as config/run_config.h makes them.
using MathFields = std::vector<std::pair<std::string, std::string>>;

/// Everything about a checkpoint except the tensors' values. Nothing in it depends on ranks, so any layout
/// can resume from a checkpoint of any other. It has the layout's name only for people, and to recognise
/// checkpoints of builds with a known fault.
struct Manifest {
  static constexpr int kFormatVersion = 1;
  /// Raised when a fault that had changed numbers is fixed. 1: with schedule=zero_bubble gradients are those
  /// of every layout.
  static constexpr int kNumericsRevision = 1;

  std::string run_id;
  int64_t step = 0;           ///< number of complete optimizer steps
  int64_t data_position = 0;  ///< samples consumed; the stream of samples continues here
  int64_t total_steps = 0;    ///< of the whole training
  double total_epochs = 0;    ///< as configured; 0 if steps were
  uint64_t seed = 0;
  uint64_t math_hash = 0, config_hash = 0;
  std::string layout;  ///< of the run that saved it, "dp=2"; "": not known, because an earlier build saved it
  int64_t numerics_revision =
      kNumericsRevision;  ///< of the build that saved it; 0: of those before the first
  MathFields math_fields;
  uint64_t dataset_identity = 0;
  std::string arithmetic_fingerprint;
  uint64_t params_hash = 0, state_hash = 0;
  bool pending_evaluation = false;  ///< an evaluation was due after this step and is not done
  int64_t skipped_steps = 0;        ///< of `step`, steps without an update, because gradients were not finite
  int64_t overflowed_steps = 0;     ///< of `skipped_steps`, steps that lowered the loss scale
  int64_t optimizer_updates = -1;   ///< updates of optimizer state; -1: the steps that were not skipped
  /// Parameters that were frozen at first: the updates of optimizer state before their own first one.
  std::map<std::string, int64_t> learning_since;
  double loss_scale = 0;         ///< factor on the loss; 0 if losses are not scaled
  int64_t loss_scale_steps = 0;  ///< of this interval, all without an overflow
  int64_t best_step = -1;        ///< of the lowest evaluation loss so far; -1: there was no evaluation
  double best_eval_loss = 0;
  int64_t evaluations_since_best = 0;     ///< without a best one, all of them
  int64_t last_evaluated_step = -1;       ///< -1: none
  uint64_t evaluation_data_identity = 0;  ///< 0: nothing to evaluate on, or not known
  /// Texts of files that turn raw data into numbers, by name: "tokenizer.json". They lie beside
  /// manifest.json, which only lists them.
  std::map<std::string, std::string> encodings;
  std::string weights_from;        ///< what the run's first weights were read from; "": they were drawn
  uint64_t weights_hash = 0;       ///< the params_hash that the run began with, if it read weights
  bool keeps_best = false;         ///< the checkpoint of best_step is not to be deleted
  bool evaluates_average = false;  ///< evaluations were of moving averages, not of the parameters
  std::vector<FileRecord> files;
  bool operator==(const Manifest&) const = default;
};

/// The text of manifest.json, with a hash over all the rest of it at the end.
std::string to_text(const Manifest& manifest);
/// Reads what to_text() wrote. Throws CheckpointError, which begins with `name`, for anything else: another
/// hash, a newer version, missing or mistyped fields, file names with folders in them.
Manifest manifest_from_text(std::string_view text, const std::string& name);

/// A record as text, to be sent from the rank that wrote a shard to the one that commits.
std::string to_text(const FileRecord& record);
FileRecord file_record_from_text(std::string_view text);

/// The differences, one line each: "trainer.seed: 1 in the checkpoint, 2 now"; empty if there are none. What
/// a layer's parameters begin at makes none, since those of a checkpoint have begun.
std::vector<std::string> compare_math(const MathFields& saved, const MathFields& current);

}  // namespace lockstep::checkpoint
