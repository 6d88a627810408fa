#pragma once

#include <cstdint>
#include <type_traits>

#include "comm/message_port.h"

namespace lockstep::run {

// Messages between workers and servers of a session, besides gradients and parameters. All ranks run the same
// program on machines of one kind; they agree on that at the start.

/// The result of a worker's step.
struct PushFacts {
  double loss_sum = 0, count = 0, correct = 0;
  double gradient_norm = 0;   ///< of the mean over the worker's share of the batch; 0 if it is not known
  double gradient_scale = 1;  ///< clipping, by that norm
  double finite = 1;          ///< 0: the push changes nothing
};

/// To a server; the gradients of the range follow a push. Except the last one to each server, pushes may be
/// sent before the result of their step is known.
struct WorkerMessage {
  enum class Kind : int32_t { ask, push, leave } kind = Kind::ask;
  int32_t range = -1;     ///< push
  int64_t clock = 0;      ///< push, ask: the worker's own step
  int64_t version = -1;   ///< ask: the wanted version; -1: the server decides
  int64_t number = -1;    ///< ask: of the step over all workers, as the coordinator has granted it
  int32_t asks_stop = 0;  ///< push: of the run
  int32_t completes = 0;  ///< push: `facts` are valid, and the landed parts of the step may be applied
  PushFacts facts;        ///< push
};

/// Totals of the pushes of range 0 that were applied since the session began, at the coordinator.
struct SessionTotals {
  int64_t updates = 0;  ///< STALE: of a clock; ASYNC: of a push
  int64_t skipped = 0;  ///< of these, without effect
  int64_t pushes = 0;   ///< that were finite, which the sums are of
  double loss_sum = 0, count = 0, correct = 0, norm_sum = 0;
};

/// To a worker; the contents of all ranges of the server follow an answer.
struct ServerMessage {
  enum class Kind : int32_t { answer, refuse } kind = Kind::answer;
  int32_t asks_stop = 0;  ///< of the run: this server was asked
  int64_t version = 0;    ///< of all ranges; ASYNC: of range 0
  int64_t grant = 0;      ///< from the coordinator: number of steps of all workers granted before this one
  SessionTotals totals;
};

/// A rank may be both worker and server, and receive messages from another rank in both roles.
struct SessionPorts {
  comm::MessagePort& to_servers;
  comm::MessagePort& to_workers;
};

static_assert(std::is_trivially_copyable_v<WorkerMessage> && std::is_trivially_copyable_v<ServerMessage>);

}  // namespace lockstep::run
