#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "program/program.h"
#include "run/program_memory.h"
#include "train/faults/failpoint.h"

namespace lockstep::train {

/// The failpoints of one rank, armed. Without any there is no object, and nothing is asked anywhere.
///
/// Before it acts, a failpoint writes a line to the file that LOCKSTEP_FAILPOINT_LOG names: wall-clock
/// microseconds, its text, where it was. One that stands there already does not act again: a run that died of
/// it and resumed passes the same step once more. Thread-safety: all methods may be called from any thread.
class Failpoints {
 public:
  /// Those of `rank`; null where it has none. `texts`: as in --failpoint. Throws ConfigError for mistakes in
  /// any of them, also those of other ranks; IoError where the log cannot be read.
  static std::unique_ptr<Failpoints> parse(const std::vector<std::string>& texts, int rank, int world_size);

  /// Throws ConfigError where one waits for an instruction that neither `step` nor `serve` has.
  void check(const program::Program& step, const program::Program& serve = {}) const;
  /// The rank may make no part of some steps: those that wait for one act in its next one then.
  void leave_out_steps() { leaves_out_steps_ = true; }

  /// Before the first step.
  void at_start();
  /// For Executor's `before`. `step`: the optimizer step being made, counted from 1; in programs other than
  /// "step" the steps complete. Returns, or throws Error, or does not return at all, as the failpoints say.
  void before_instruction(const program::Program& program, int instruction, int64_t step,
                          const run::ProgramMemory& memory);
  /// A file system through which `real` fails at the operations meant by write:K. They are counted for each
  /// checkpoint, from where its temporary folder is made (or, on ranks that do not make it, from the first
  /// file in it) until the next checkpoint is begun. Both must outlive it.
  std::unique_ptr<checkpoint::FileSystem> wrap(checkpoint::FileSystem& real);

 private:
  friend class FailingFileSystem;
  struct Armed {
    Failpoint failpoint;
    bool fired = false;
  };

  explicit Failpoints(std::vector<Failpoint> failpoints);
  /// Whether this failpoint's time has come, for the first time; then it stands in the log.
  bool claim(Armed& armed, const std::string& where);
  void act(const Failpoint& failpoint, const std::string& where) const;
  void spoil(Armed& armed, const program::Program& program, int instruction,
             const run::ProgramMemory& memory);
  /// Whether an operation shall fail that belongs to the checkpoint of `step`; other kinds act here.
  const Failpoint* at_operation(int64_t step, int operation, const std::string& path);

  std::mutex mutex_;  // of all `fired` flags
  std::vector<Armed> armed_;
  bool leaves_out_steps_ = false;
  std::string log_path_;  // empty: none
};

}  // namespace lockstep::train
