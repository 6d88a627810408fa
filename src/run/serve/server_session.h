#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "run/actions.h"
#include "run/serve/async_server.h"
#include "run/serve/messages.h"
#include "run/serve/served_range.h"
#include "run/serve/stale_server.h"

namespace lockstep::run {

/// What a server gets of each session from outside.
struct ServerInputs {
  int64_t steps = 0;  ///< SessionTerms::steps
  /// Of an update, by how many its range has seen in this session, and how many of these changed something.
  std::function<StepScalars(int64_t updates, int64_t applied)> constants;
  /// Whether this rank was asked to stop the run; heard with the next push, by the coordinator.
  std::function<bool()> stop_requested;
  /// Called before each update of a first range, with the number of those before; may be empty.
  std::function<void(int64_t updates)> before_update;
};

/// A server's side of sessions: carries out what a StaleServer or an AsyncServer decides, over two ports, in
/// the memory that the `serve` instructions of a program name. It computes on the host's processor; what lies
/// in memory of a device comes from there when a session begins, and goes back at its end. Polled: nothing
/// but advance() does anything, and that never waits, but for these copies. Not thread-safe.
class ServerSession {
 public:
  /// `workers`: ranks at the ports, ascending; `server`: its own number. Program and context must outlive it.
  /// Throws InternalError if the memory is not what the terms need.
  ServerSession(const SessionPorts& ports, std::vector<int> workers, int server,
                const program::SessionTerms& terms, const program::Program& program,
                const ExecutionContext& context);

  /// REQUIRES: the last session is over.
  void begin(const ServerInputs& inputs);
  /// Receives, updates and answers what it can; true if anything was to do.
  bool advance();
  /// Nothing more comes of this worker. Steps that it has pushed to the end count, pushes that wait for
  /// the last of their step are dropped; where the session depends on all of
  /// them, advance() throws CommError.
  void lost(int worker);
  /// Whether a message from or to a lost worker was under way: whatever carries it may go on to write or read
  /// its memory, also when port and session are gone.
  bool has_lost_transfers();
  /// All workers have left, all of their pushes are applied and all answers are sent.
  bool is_over() const { return over_; }

  /// Of this session.
  const SessionTotals& totals() const { return totals_; }
  const Staleness& staleness() const;
  double busy_ms() const { return busy_ms_; }

 private:
  struct Answer {
    comm::Ticket ticket;
    bool is_current = false;  // read from where updates write
  };
  struct StepFacts {
    int64_t clock = -1;
    PushFacts facts;
  };
  struct Channel {
    int rank;
    bool is_open = false;
    bool is_lost = false;
    bool lands = false;  // `message` has come, and its gradients are on their way
    int64_t number = 0;  // of the step that it was granted last
    WorkerMessage message;
    ServerMessage reply;
    comm::Ticket heard, landed, replied;
    std::vector<Answer> answers;  // by range
  };

  void listen(Channel& channel);
  bool hear(int worker);
  void react(int worker);
  std::optional<Decision> decide();
  bool carry_out();
  // Each false if it has to wait for what is on its way.
  bool carry_out(const ApplyClock& decision);
  bool carry_out(const ApplyPush& decision);
  bool carry_out(const AnswerPull& decision);
  bool carry_out(const RefuseStep& decision);
  bool carry_out(const ReportLost& decision);
  bool carry_out(const EndSession& decision);
  bool reply(Channel& channel, const ServerMessage& message);
  bool is_answered(Channel& channel);
  int64_t next_number();
  void copy_from_device();
  void copy_to_device();
  bool current_is_sent();
  void sum_pushes(const ServedRange& range, int slot, int64_t clock);
  void scale_push(const ServedRange& range, int slot, int worker, int64_t clock);
  void update(ServedRange& range, const std::byte* gradients);
  void count(const PushFacts& facts);
  /// Of the push of this clock.
  const PushFacts& facts(int slot, int worker, int64_t clock) const;

  SessionPorts ports_;
  program::SessionTerms terms_;
  int server_, slots_;
  std::shared_ptr<StepKernels> kernels_;
  device::Device& device_;  // whose memory holds replica and state
  std::unique_ptr<device::Device> processor_;
  std::unique_ptr<device::Stream> stream_;
  std::vector<ServedRange> ranges_;
  std::vector<Channel> channels_;  // by worker
  std::vector<StepFacts> facts_;   // by slot and worker, of the last step whose last push is announced
  // By range: pushes that have arrived, updates, and those of them that were finite.
  std::vector<int64_t> arrived_, updates_, applied_;
  std::variant<std::monostate, StaleServer, AsyncServer> protocol_;
  std::optional<Decision> decided_;  // and not yet carried out
  ServerInputs inputs_;
  program::Verdict verdict_;
  StepScalars constants_;
  SessionTotals totals_;
  int64_t granted_ = 0;
  std::vector<int64_t> lost_numbers_;  // of steps that were granted, and lost with their workers
  int part_ = 0;                       // ranges of the update under way that are done
  double busy_ms_ = 0;
  bool over_ = true;
};

}  // namespace lockstep::run
