#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "run/serve/async_server.h"
#include "run/serve/server_memory.h"
#include "run/serve/session_worker.h"
#include "run/serve/stale_server.h"

namespace lockstep::run {

/// What can be next in a session.
struct Happening {
  enum class Kind : uint8_t {
    worker_moves,      ///< sends its next message, or computes
    server_decides,    ///< and carries it out
    server_hears,      ///< the first message on its way from a worker
    worker_hears,      ///< likewise, from a server
    worker_dies,       ///< what it has sent may still arrive
    death_is_noticed,  ///< by a server: what has not arrived is dropped
    stop_is_asked,     ///< of a worker
  };
  Kind kind;
  int8_t worker = -1;
  int8_t server = -1;
};

std::string describe(const Happening& happening);

/// What is wrong with a session, and has to be found.
struct Flaws {
  MemoryFlaws memory = {};
  int bound_exceeded = 0;                ///< servers and workers take the bound to be so much larger
  int hasty_servers = 0;                 ///< the same of servers alone
  int forgetful_servers = 0;             ///< all but the coordinator take it to be so much smaller
  int steps_exceeded = 0;                ///< servers take them to be so many more
  bool messages_overtake = false;        ///< the last one on a channel comes first
  bool deaths_go_unnoticed = false;      ///< by the coordinator
  bool dead_pushes_are_dropped = false;  ///< ASYNC: of dead workers only what arrived of range 0 is applied
  bool pushes_complete_early = false;    ///< ASYNC: servers take each for the last one of its step
  bool refusals_are_hasty = false;       ///< ASYNC: once all steps are granted, though none may be done
};

struct Scene {
  program::SessionTerms terms;
  int deaths = 0;  ///< at most, at any point
  int stops = 0;   ///< likewise
  /// Workers and servers do at once what they can do without hearing anything: fewer states, since a message
  /// that is sent late differs little from one that is long on its way.
  bool prompt = false;
  /// Whether steps push the coordinator's range 0, by which steps are counted in ASYNC, last or first.
  bool counted_last = true;
  /// ASYNC: whether servers hear only with the last push of a step what it came to, or with each.
  bool complete_at_last = false;
  Flaws flaws = {};
};

/// Servers with their memory, workers, and what is on its way between them. Checks whatever happens; throws
/// InternalError at the first thing that is wrong, be it noticed here or by the protocol itself.
class World {
 public:
  /// REQUIRES: the scene outlives the world; at most kMostWorkers workers.
  explicit World(const Scene& scene);

  /// All that may be possible now.
  std::vector<Happening> candidates() const;
  /// False: not possible after all, and nothing has changed.
  bool happen(const Happening& happening);
  /// Throws if the session is not over or has not done what it was to do. REQUIRES: nothing is possible.
  void check_end() const;

  uint64_t hash() const;

 private:
  struct Message {
    enum class Kind : uint8_t { ask, push, leave, answer, refusal };
    Kind kind;
    bool stop = false;
    bool completes = false;
    int16_t range = 0;
    int16_t copy = kNoCopy;
    int64_t number = 0;                   // step, clock or version
    std::optional<int64_t> version = {};  // that is asked for
    Contents contents = {};
    auto state() const { return std::tie(kind, stop, completes, range, copy, number, version, contents); }
  };
  using Channel = std::vector<Message>;

  struct Server {
    std::variant<StaleServer, AsyncServer> protocol;
    ServerMemory memory;
    bool over = false;
    bool reports = false;           // a worker that was lost
    std::vector<Contents> arrived;  // by range: pushes that were heard, which are to be applied
    std::vector<Contents> held;     // likewise: that are not complete
  };

  struct Worker {
    SessionWorker protocol;
    std::vector<Contents> read;  // by server and range: what has come
    bool dead = false;
    int64_t granted = 0;  // ASYNC: steps, less the one that was lost with the worker
    auto state() const { return std::tie(protocol, read, dead, granted); }
  };

  /// Between a worker and a server.
  struct Link {
    Channel to_server, to_worker;
    bool noticed = false;  // the server knows that the worker is dead
    auto state() const { return std::tie(to_server, to_worker, noticed); }
  };

  int servers() const { return static_cast<int>(servers_.size()); }
  int workers() const { return static_cast<int>(workers_.size()); }
  Link& link(int worker, int server);
  const Link& link(int worker, int server) const;
  int place(int server, int range) const;  // of a range among all
  int64_t granted() const;
  int64_t most_granted() const;
  int64_t whole_rounds(int64_t steps) const;

  bool move(int worker);
  void carry_out(int worker, const AskServer& ask);
  void carry_out(int worker, const ComputeStep& step);
  void carry_out(int worker, const PushRange& push);
  void carry_out(int worker, const LeaveServer& leave);

  bool decide(int server);
  int64_t carry_out(int server, const ApplyClock& apply);
  int64_t carry_out(int server, const ApplyPush& apply);
  int64_t carry_out(int server, const AnswerPull& answer);
  int64_t carry_out(int server, const RefuseStep& refusal);
  int64_t carry_out(int server, const ReportLost& report);
  int64_t carry_out(int server, const EndSession& end);

  bool completes(const PushRange& push) const;
  bool server_hears(int worker, int server);
  static void arrive(Server& server, int worker, const Message& push);
  bool worker_hears(int worker, int server);
  bool die(int worker);
  bool notice_death(int worker, int server);
  bool ask_to_stop(int worker);
  void settle();
  void check_stale_end() const;
  void check_async_end() const;

  const Scene* scene_;
  std::vector<Server> servers_;
  std::vector<Worker> workers_;
  std::vector<Link> links_;  // by worker and server
  int deaths_left_, stops_left_;
  int64_t end_;  // STALE: steps of each worker; ASYNC: of all
};

}  // namespace lockstep::run
