#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "program/program.h"

namespace lockstep::train {

/// What a communication costs: this many ticks, and one more for so many bytes.
struct LinkSpeed {
  int64_t latency = 1;
  int64_t bytes_per_tick = 1;
};

/// A link whose time is counted, not measured. Communications that ranks start are held until the link has
/// carried them: `latency` ticks after they begin, plus a tick for every `bytes_per_tick`, one after the
/// other. The clock stands still while anything else can go on: it moves to the next arrival once every rank
/// has started all that the program's partial order allows without it, in the last iteration and in what is
/// left of the one before. So what overlaps what is a matter of order alone, the same in every run.
///
/// REQUIRES: operation n of a group on one rank meets operation n on all others, as in data-parallel
/// programs.
class ModelledLink {
 public:
  /// `issues_in_order`: a rank's communications start in program order over all lanes, and exchanges while
  /// those before them are under way (program::independent_predecessors), as the inline executor has it.
  ModelledLink(std::vector<program::Program> programs, int iterations, const LinkSpeed& speed,
               bool issues_in_order);

  /// A communicator whose operations wait for the link.
  std::unique_ptr<comm::Communicator> attach(int group, std::unique_ptr<comm::Communicator> inner);
  /// To be called by the rank's executor before each instruction.
  void started(int rank, int64_t iteration, int instruction);
  /// To be called by each rank before it runs its next iteration, at once when it has run the one before.
  void begin_iteration(int rank);

  /// Carries everything; on a thread of its own. Ends early, with everybody released, where the ranks do not
  /// do what the partial order allows.
  void carry();

  /// What went wrong, or "".
  std::string complaint() const;
  /// Ticks from when the rank began its last iteration until each of that iteration's instructions started.
  std::vector<int64_t> start_times(int rank) const;

  /// For attached communicators.
  bool has_arrived(int group, int64_t operation) const;
  bool wait_for_arrival(int group, int64_t operation, Deadline deadline);
  void give_up() noexcept;

 private:
  // A node is an instruction of an iteration: number iteration * instructions + instruction.
  struct Rank {
    std::vector<bool> started;   // by node
    std::vector<int64_t> times;  // likewise
    std::vector<int64_t> begun;  // by iteration: when
  };
  /// Of a communicator.
  struct Operation {
    int node;
    int64_t bytes;  ///< sent
  };
  /// What a rank may have done by now.
  struct Allowed {
    size_t begun;  // iterations
    std::vector<bool> started;
  };

  int count_of(size_t rank) const { return static_cast<int>(programs_[rank].instructions.size()); }
  const program::Instruction& instruction(size_t rank, int node) const;
  std::string describe_node(size_t rank, int node) const;
  bool is_done(size_t rank, int node) const;
  bool may_begin(size_t rank, int iteration, const std::vector<bool>& started) const;
  bool may_start(size_t rank, int node, const std::vector<bool>& started) const;
  Allowed allowed(size_t rank) const;
  bool await_all_that_may_run(std::unique_lock<std::mutex>& lock);
  bool all_have_reached(size_t group, int64_t operation) const;
  void complain(const std::string& what);
  int64_t arrival_time(int group, int64_t operation);

  std::vector<program::Program> programs_;
  int iterations_;
  LinkSpeed speed_;
  bool issues_in_order_;
  std::vector<std::vector<std::vector<Operation>>> operations_;  // rank, group
  std::vector<std::vector<int>> reports_;                        // rank -> instructions
  std::vector<std::vector<int>> starts_ahead_;  // rank, instruction: before the end of so many before it

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::vector<Rank> ranks_;
  std::vector<int64_t> carried_;  // by group
  std::map<std::pair<int, int64_t>, int64_t> due_;
  int64_t clock_ = 0, busy_until_ = 0;
  bool given_up_ = false;
  std::string complaint_;
};

}  // namespace lockstep::train
