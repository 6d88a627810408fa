#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "device/device.h"
#include "run/serve/messages.h"
#include "run/serve/session_worker.h"

namespace lockstep::run {

/// A step that the coordinator has granted.
struct Grant {
  int64_t step = 0;     ///< the worker's own count in this session
  int64_t number = 0;   ///< count over all workers
  int64_t version = 0;  ///< of the parameters that it reads. ASYNC: of the coordinator's range 0
  SessionTotals totals;
};

/// A worker's side of sessions: executes what a SessionWorker decides, over two ports. The worker's `pull`
/// and `push` instructions are bound to it, in program order. The code that runs a step asks for it first,
/// and leaves when it is refused. Parameters begin to arrive when the step is granted, because nothing reads
/// the old ones any more. Gradients are passed to the port, and are sent by the time that the next step is
/// granted. Not thread-safe.
class WorkerSession {
 public:
  /// `servers`: ranks at the ports, ascending; `terms`: those of all sessions, except their steps.
  WorkerSession(const SessionPorts& ports, std::vector<int> servers, const program::SessionTerms& terms);

  /// Both return the number by which the instruction refers to its part. Pulls of a server come in the order
  /// of its ranges, and before all pushes. `read`: recorded when a device has read what came; null if only
  /// the step reads it.
  int add_pull(int server_rank, int segment, std::byte* to, int64_t size_bytes,
               const device::Event* read = nullptr);
  int add_push(int server_rank, int segment, const std::byte* from, int64_t size_bytes);

  void begin(int64_t steps);
  /// Asks for the next step and waits, calling `waiting` repeatedly. None if the step is refused; then the
  /// worker has left. REQUIRES: the preceding step is complete (Executor::finish()), because new parameters
  /// overwrite what it has read.
  std::optional<Grant> next_step(const std::function<void()>& waiting);
  /// The coordinator learns of it with the next push.
  void ask_to_stop() { protocol_->stop(); }
  bool has_arrived(int pull);
  /// `facts`: none if the step's result is not known yet.
  void push(int push, const std::optional<PushFacts>& facts);
  /// Whether the last of these pushes is sent, and its memory free.
  bool has_sent(int push);
  /// Makes progress with messages in flight.
  void progress();

 private:
  struct Pull {
    int server, range, segment;
    std::byte* to;
    int64_t size_bytes;
    const device::Event* read;
    std::vector<comm::Ticket> slices;  // as SessionTerms::slice_at() has them
    size_t arrived = 0;                // of them
  };
  struct Push {
    int server, range;
    const std::byte* from;
    int64_t size_bytes;
    WorkerMessage message;
    comm::Ticket header, gradients;
  };
  struct Channel {
    int rank;
    WorkerMessage question;
    ServerMessage answer;
    comm::Ticket asked, answered;
    bool is_known = false;  // the answer, of this step
  };

  int server_of(int rank) const;
  void send(Channel& channel);
  void ask(const AskServer& move);
  void receive_ranges(int server, int64_t version);
  bool hears(Channel& channel);
  /// What the coordinator says.
  void hear();
  bool sent();

  SessionPorts ports_;
  program::SessionTerms terms_;
  std::vector<Channel> channels_;  // by server
  std::vector<Pull> pulls_;
  std::vector<Push> pushes_;
  std::vector<RangeOfServer> push_order_;
  std::optional<SessionWorker> protocol_;
};

}  // namespace lockstep::run
