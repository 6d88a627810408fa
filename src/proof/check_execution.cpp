#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "base/index.h"
#include "program/matching.h"
#include "proof/check_world.h"
#include "proof/mathematics.h"

namespace lockstep::proof {
namespace {

/// Walks through all ranks' programs at once. A rank performs its communications one at a time, in issue
/// order, and none is buffered: an exchange is complete when every partner has reached its counterpart, a
/// collective when all have. (Computation never waits for anything but earlier instructions, so program order
/// on each rank loses nothing.) Where nobody can go on, the ranks that wait for each other are reported.
class Walk {
 public:
  Walk(const ProgramWorld& world, const ModelFlow* flow, Findings& findings)
      : world_(world),
        findings_(findings),
        mathematics_(world, flow, findings),
        ranks_(static_cast<size_t>(world.size())) {}

  void run() {
    for (int rank = 0; rank < world_.size(); ++rank) runnable_.push_back(rank);
    while (!runnable_.empty()) {
      const int rank = runnable_.front();
      runnable_.pop_front();
      advance(rank);
    }
    if (report_deadlock()) return;
    mathematics_.finish(kIterations);
  }

 private:
  struct State {
    int node = 0;           ///< instruction + iteration * count
    bool posted = false;    ///< has reached the communication it stands at
    bool complete = false;  ///< of that communication
    int outstanding = 0;    ///< transfers of an exchange
  };
  struct Half {
    Place place;
    const program::Operand* operand;
  };
  using Way = std::tuple<int, int, int>;  // group, source, destination

  State& state(int rank) { return nth(ranks_, rank); }
  int count(int rank) const { return static_cast<int>(world_.program(rank).instructions.size()); }
  bool finished(int rank) { return state(rank).node >= kIterations * count(rank); }
  Place place(int rank) { return {rank, state(rank).node % count(rank), state(rank).node / count(rank)}; }
  const program::Instruction& standing_at(int rank) { return world_.instruction(rank, place(rank).index); }

  void advance(int rank) {
    State& own = state(rank);
    while (!finished(rank)) {
      findings_.get_on();
      const program::Instruction& i = standing_at(rank);
      if (!program::communicates(i.kind) && i.kind != program::InstructionKind::serve) {
        mathematics_.local(place(rank));
        ++own.node;
        continue;
      }
      if (!own.posted) {
        own.posted = true;
        own.complete = false;
        post(rank, i);
      }
      if (!own.complete && is_with_server(i.kind)) own.complete = try_server(rank, i);
      if (!own.complete) return;
      own.posted = false;
      ++own.node;
    }
    wake_servers_and_workers();
  }

  static bool is_with_server(program::InstructionKind kind) {
    return kind == program::InstructionKind::push || kind == program::InstructionKind::pull ||
           kind == program::InstructionKind::serve;
  }

  void post(int rank, const program::Instruction& i) {
    if (i.kind == program::InstructionKind::exchange) {
      post_exchange(rank, i);
    } else if (i.kind == program::InstructionKind::serve) {
      wake_servers_and_workers();
    } else if (!is_with_server(i.kind)) {
      post_collective(rank, i);
    }
  }

  void post_exchange(int rank, const program::Instruction& i) {
    State& own = state(rank);
    own.outstanding = static_cast<int>(i.operands.size());
    own.complete = own.outstanding == 0;
    const int group = world_.group_id(rank, i);
    for (const program::Operand& operand : i.operands) {
      const int peer = world_.peer_of(rank, i, operand);
      const bool sends = operand.role == program::Role::send;
      const Half own_half{place(rank), &operand};
      const auto other = ends_[way_of(group, rank, peer, sends)].match(sends, own_half);
      if (!other) continue;
      const Half &from = sends ? own_half : *other, &to = sends ? *other : own_half;
      mathematics_.transfer(from.place, *from.operand, to.place, *to.operand);
      finish_transfer(rank);
      finish_transfer(other->place.rank);
    }
  }

  static Way way_of(int group, int rank, int peer, bool sends) {
    return sends ? Way(group, rank, peer) : Way(group, peer, rank);
  }

  void finish_transfer(int rank) {
    State& of = state(rank);
    if (--of.outstanding > 0) return;
    of.complete = true;
    runnable_.push_back(rank);
  }

  void post_collective(int rank, const program::Instruction& i) {
    const auto& members = world_.members(rank, i);
    if (collectives_[world_.group_id(rank, i)].come(rank, members.size()).empty()) return;
    std::vector<Place> places;
    for (int member : members) places.push_back(place(member));
    mathematics_.collective(places);
    for (int member : members) {
      state(member).complete = true;
      runnable_.push_back(member);
    }
  }

  bool is_serving(int server) {
    return !finished(server) && standing_at(server).kind == program::InstructionKind::serve;
  }

  std::vector<int> workers_of(int server, const program::Instruction& serve) const {
    std::vector<int> workers;
    for (const program::Operand& operand : serve.operands)
      if (operand.role == program::Role::gradients) workers.push_back(world_.peer_of(server, serve, operand));
    return workers;
  }

  /// The gradients of a push, the parameters of a pull.
  static const program::Operand& moved_by(const program::Instruction& i) {
    return *std::find_if(i.operands.begin(), i.operands.end(), [&i](const program::Operand& operand) {
      return operand.role == moved_role(i.kind);
    });
  }

  /// A server is always ready for a push; a pull waits until every worker has pushed often enough, so that
  /// the version of its step within the bound exists.
  bool try_server(int rank, const program::Instruction& i) {
    if (i.kind == program::InstructionKind::serve) {
      const auto workers = workers_of(rank, i);
      return std::all_of(workers.begin(), workers.end(), [&](int w) { return finished(w); });
    }
    const program::Operand& operand = moved_by(i);
    const int server = world_.peer_of(rank, i, operand);
    if (!is_serving(server)) return false;
    const int serve = world_.find_serve(server, world_.group_id(rank, i), i.segment, operand.index);
    auto& clocks = clocks_[{server, serve}];
    if (i.kind == program::InstructionKind::push) {
      mathematics_.push(place(rank), operand, server, serve);
      ++clocks[rank];
      wake_servers_and_workers();
      return true;
    }
    if (worker_to_wait_for(rank, server, serve) >= 0) return false;
    mathematics_.pull(place(rank), operand, server, serve);
    return true;
  }

  /// A worker that the pull of `rank` has to wait for, or -1.
  int worker_to_wait_for(int rank, int server, int serve) {
    const program::Instruction& i = world_.instruction(server, serve);
    if (i.bound < 0) return -1;
    auto& clocks = clocks_[{server, serve}];
    for (int worker : workers_of(server, i))
      if (clocks[worker] < clocks[rank] - i.bound) return worker;
    return -1;
  }

  void wake_servers_and_workers() {
    if (!world_.has_servers()) return;
    for (int rank = 0; rank < world_.size(); ++rank)
      if (!finished(rank) && state(rank).posted && is_with_server(standing_at(rank).kind))
        runnable_.push_back(rank);
  }

  /// Whom a rank that cannot go on is waiting for: the first of them.
  int waits_for(int rank) {
    const program::Instruction& i = standing_at(rank);
    if (i.kind == program::InstructionKind::exchange) {
      const int group = world_.group_id(rank, i);
      for (const program::Operand& operand : i.operands) {
        const int peer = world_.peer_of(rank, i, operand);
        const bool sends = operand.role == program::Role::send;
        for (const Half& half : ends_[way_of(group, rank, peer, sends)].waiting())
          if (half.operand == &operand) return peer;
      }
    } else if (i.kind == program::InstructionKind::push || i.kind == program::InstructionKind::pull) {
      const program::Operand& operand = moved_by(i);
      const int server = world_.peer_of(rank, i, operand);
      const int serve = world_.find_serve(server, world_.group_id(rank, i), i.segment, operand.index);
      const int worker = is_serving(server) ? worker_to_wait_for(rank, server, serve) : -1;
      return worker >= 0 ? worker : server;
    } else if (i.kind == program::InstructionKind::serve) {
      for (int worker : workers_of(rank, i))
        if (!finished(worker)) return worker;
    } else {
      const auto& present = collectives_[world_.group_id(rank, i)].present();
      for (int member : world_.members(rank, i))
        if (std::ranges::find(present, member) == present.end()) return member;
    }
    return rank;
  }

  bool report_deadlock() {
    std::set<int> told;
    bool found = false;
    for (int start = 0; start < world_.size(); ++start) {
      if (finished(start)) continue;
      found = true;
      std::vector<int> chain;
      int rank = start;
      while (!finished(rank) && std::find(chain.begin(), chain.end(), rank) == chain.end()) {
        chain.push_back(rank);
        rank = waits_for(rank);
      }
      if (!finished(rank)) chain.erase(chain.begin(), std::find(chain.begin(), chain.end(), rank));
      if (!told.insert(*std::min_element(chain.begin(), chain.end())).second) continue;
      std::string text =
          finished(rank) ? "waits for a rank that has finished:" : "ranks wait for each other:";
      for (int waiting : chain)
        text +=
            fmt::format(" rank {} waits in {} for rank {};", waiting,
                        program::describe(world_.program(waiting), place(waiting).index), waits_for(waiting));
      text += fmt::format(" in iteration {}", place(chain.front()).iteration);
      findings_.add(CheckFinding::Property::deadlock, chain.front(), place(chain.front()).index, text);
    }
    return found;
  }

  const ProgramWorld& world_;
  Findings& findings_;
  Mathematics mathematics_;
  std::vector<State> ranks_;
  std::deque<int> runnable_;
  std::map<Way, program::MessageEnds<Half>> ends_;
  std::map<int, program::Meeting<int>> collectives_;          // by group
  std::map<std::pair<int, int>, std::map<int, int>> clocks_;  // (server, serve) -> worker -> pushes
};

}  // namespace

void check_execution(const ProgramWorld& world, const ModelFlow* flow, Findings& findings) {
  Walk(world, flow, findings).run();
}

}  // namespace lockstep::proof
