#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "run/actions.h"
#include "run/serve/async_server.h"
#include "run/serve/messages.h"
#include "run/serve/served_range.h"
#include "run/serve/sliced_answer.h"
#include "run/serve/stale_server.h"
#include "run/stamp_recorder.h"

namespace lockstep::run {

/// A server's inputs for each session.
struct ServerInputs {
  int64_t steps = 0;  ///< SessionTerms::steps
  /// The scalars of an update, by the number of earlier updates of its range in this session, and of those
  /// that changed something.
  std::function<StepScalars(int64_t updates, int64_t applied)> constants;
  /// Whether this rank was asked to stop the run; the coordinator learns of it with the next push.
  std::function<bool()> stop_requested;
  /// Called before each update of a first range, with the number of earlier ones; may be empty.
  std::function<void(int64_t updates)> before_update;
  uint64_t first_iteration = 0;  ///< StepInputs::iteration of the session's first step, for stamps
};

/// A server's side of sessions: executes the decisions of a StaleServer or an AsyncServer, over two ports, in
/// the memory of a program's `serve` instructions. It computes on the host's processor. Device memory is
/// copied to the host when a session begins, and back at its end. It is polled: only advance() does work, and
/// never waits, except for these copies. Not thread-safe.
class ServerSession {
 public:
  /// `workers`: ranks at the ports, ascending; `server`: this server's number. Program and context must
  /// outlive it. `recorder`: of landings, updates and answers; may be null. Throws InternalError if the
  /// memory is not what the terms need.
  ServerSession(const SessionPorts& ports, std::vector<int> workers, int server,
                const program::SessionTerms& terms, const program::Program& program,
                const ExecutionContext& context, StampRecorder* recorder = nullptr);

  /// REQUIRES: the last session is over.
  void begin(const ServerInputs& inputs);
  /// Receives, updates and answers as far as it can; true if there was anything to do.
  bool advance();
  /// Says that this worker is lost. Its completely pushed steps count; pushes that wait for the last one of
  /// their step are dropped. If the session depends on all workers, advance() throws CommError.
  void lost(int worker);
  /// Whether a message from or to a lost worker was in flight. Its transport may still write or read its
  /// memory, even after port and session are gone.
  bool has_lost_transfers();
  /// Whether all workers have left, all of their pushes are applied, and all answers are sent.
  bool is_over() const { return over_; }

  /// Of this session.
  const SessionTotals& totals() const { return totals_; }
  const Staleness& staleness() const;
  double busy_ms() const { return busy_ms_; }

 private:
  struct Answer {
    comm::Ticket ticket;
    bool is_current = false;  // read from where updates write
    bool is_under_way = false;
    uint64_t iteration = 0;
    Clock::time_point began;
  };
  struct StepFacts {
    int64_t clock = -1;
    PushFacts facts;
  };
  struct Channel {
    int rank;
    bool is_open = false;
    bool is_lost = false;
    bool lands = false;                        // `message` has come, and its gradients are on their way
    int64_t number = 0;                        // of the step that it was granted last, over all workers
    int64_t step = 0;                          // likewise, its own count
    int64_t asked_number = 0, asked_step = 0;  // of the step that it asks for
    Clock::time_point landing_began;
    WorkerMessage message;
    ServerMessage reply;
    comm::Ticket heard, landed, replied;
    std::vector<Answer> answers;              // by range
    std::unique_ptr<SlicedAnswer> in_slices;  // ASYNC: what sends them
  };

  void listen(Channel& channel);
  bool hear(int worker);
  bool send_slices(int worker);
  void react(int worker);
  std::optional<Decision> decide();
  bool carry_out();
  // Each returns false if it must wait for data in flight.
  bool carry_out(const ApplyClock& decision);
  bool carry_out(const ApplyPush& decision);
  bool carry_out(const AnswerPull& decision);
  bool carry_out(const RefuseStep& decision);
  bool carry_out(const ReportLost& decision);
  bool carry_out(const EndSession& decision);
  bool reply(Channel& channel, const ServerMessage& message);
  bool is_answered(int worker);
  bool is_sent(int worker, int range);
  void watch_answer(int worker);
  uint64_t iteration_of(const Channel& channel) const;
  void stamp(StampKind kind, int range, int worker, uint64_t iteration, Clock::time_point begin) const;
  int64_t next_number();
  void copy_from_device();
  void copy_to_device();
  void share_scratch();
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
  StampRecorder* recorder_;
  std::shared_ptr<StepKernels> kernels_;
  device::Device& device_;                       // whose memory holds replica and state
  const std::vector<uint32_t>* updates_before_;  // ExecutionContext's
  std::unique_ptr<device::Device> processor_;
  std::unique_ptr<device::Stream> stream_;
  std::vector<ServedRange> ranges_;
  device::Buffer scratch_;         // of updates of whole matrices
  std::vector<int> serves_;        // by range: its instruction
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
