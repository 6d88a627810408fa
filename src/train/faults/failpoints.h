#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "program/program.h"
#include "run/program_memory.h"
#include "train/faults/failpoint.h"

namespace lockstep::train {

/// The armed failpoints of one rank. Without failpoints there is no object, and nothing is checked anywhere.
///
/// Before it acts, a failpoint writes a line to the file that LOCKSTEP_FAILPOINT_LOG names: wall-clock
/// microseconds, its text, its place. A failpoint that is already in the file does not act again, because a
/// run that ended by it and resumed passes the same step once more. Thread-safety: any thread may call any
/// method.
class Failpoints {
 public:
  /// The failpoints of `rank`; null if it has none. `texts`: as in --failpoint. Throws ConfigError for
  /// mistakes in any text, also those of other ranks; IoError if the log cannot be read.
  static std::unique_ptr<Failpoints> parse(const std::vector<std::string>& texts, int rank, int world_size);

  /// Throws ConfigError if a failpoint waits for an instruction that neither `step` nor `serve` has.
  void check(const program::Program& step, const program::Program& serve = {}) const;
  /// Says that the rank may have no part in some steps. Failpoints of such a step act in the rank's next one.
  void leave_out_steps() { leaves_out_steps_ = true; }

  /// Before the first step.
  void at_start();
  /// For Executor's `before`. `step`: the optimizer step under way, from 1; in programs other than "step" the
  /// number of complete steps. Returns, throws Error, or never returns, as the failpoints say.
  void before_instruction(const program::Program& program, int instruction, int64_t step,
                          const run::ProgramMemory& memory);
  /// Wraps `real` in a file system that fails at the operations of write:K. Operations are counted per
  /// checkpoint, from the making of its temporary folder (on ranks that do not make it, from the first file
  /// in it) until the next checkpoint begins. This object and `real` must outlive the result.
  std::unique_ptr<FileSystem> wrap(FileSystem& real);

 private:
  friend class FailingFileSystem;
  struct Armed {
    Failpoint failpoint;
    bool fired = false;
  };

  explicit Failpoints(std::vector<Failpoint> failpoints);
  /// Whether this failpoint acts now, for the first time; then it is in the log.
  bool claim(Armed& armed, const std::string& where);
  void act(const Failpoint& failpoint, const std::string& where) const;
  void spoil(Armed& armed, const program::Program& program, int instruction,
             const run::ProgramMemory& memory);
  /// The failpoint by which an operation for the checkpoint of `step` must fail, if any; other kinds act
  /// here.
  const Failpoint* at_operation(int64_t step, int operation, const std::string& path);

  std::mutex mutex_;  // of all `fired` flags
  std::vector<Armed> armed_;
  bool leaves_out_steps_ = false;
  std::string log_path_;  // empty: none
};

}  // namespace lockstep::train
