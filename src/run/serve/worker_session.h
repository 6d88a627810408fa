#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "device/device.h"
#include "run/serve/messages.h"
#include "run/serve/session_worker.h"

namespace lockstep::run {

/// A step that the coordinator lets begin.
struct Grant {
  int64_t step = 0;     ///< the worker's own, in this session
  int64_t number = 0;   ///< among those of all workers
  int64_t version = 0;  ///< of the parameters that it reads. ASYNC: of the coordinator's range 0
  SessionTotals totals;
};

/// A worker's side of sessions: carries out what a SessionWorker says, over two ports. Pulls and pushes are
/// what the instructions of the worker's step are bound to, in program order; whoever runs the step asks for
/// it before, and leaves when it is refused. Parameters begin to arrive when the step is granted, where
/// nothing reads them any more; gradients are given to the port, and sent by the time that the next step is
/// granted. Not thread-safe.
class WorkerSession {
 public:
  /// `servers`: ranks at the ports, ascending; `terms`: of all sessions, but for their steps.
  WorkerSession(const SessionPorts& ports, std::vector<int> servers, const program::SessionTerms& terms);

  /// Both return by which number the instruction knows its part. Pulls of a server come in the order of its
  /// ranges, and before all pushes. `read`: recorded where a device has read what came; null if nothing
  /// but the step reads it.
  int add_pull(int server_rank, int segment, std::byte* to, int64_t size_bytes,
               const device::Event* read = nullptr);
  int add_push(int server_rank, int segment, const std::byte* from, int64_t size_bytes);

  void begin(int64_t steps);
  /// Asks for the next step and waits, calling `waiting` again and again; none if it is refused. Then the
  /// worker has left. REQUIRES: the step before is complete (Executor::finish()): what comes is written over
  /// what it has read.
  std::optional<Grant> next_step(const std::function<void()>& waiting);
  /// The coordinator hears of it with the next push.
  void ask_to_stop() { protocol_->stop(); }
  bool has_arrived(int pull);
  /// `facts`: none if it is not known yet what the step comes to.
  void push(int push, const std::optional<PushFacts>& facts);
  /// Whether the last of these pushes is sent, and its memory free.
  bool has_sent(int push);
  /// Sees to what is under way.
  void progress();

 private:
  struct Pull {
    int server, range, segment;
    std::byte* to;
    int64_t size_bytes;
    const device::Event* read;
    comm::Ticket ticket;
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
