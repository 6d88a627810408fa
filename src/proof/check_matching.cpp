#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/index.h"
#include "program/instruction_rules.h"
#include "program/regions.h"
#include "proof/check_world.h"

namespace lockstep::proof {
namespace {

constexpr auto kMatching = CheckFinding::Property::matching;

bool is_collective(program::InstructionKind kind) {
  return program::communicates(kind) && kind != program::InstructionKind::exchange &&
         kind != program::InstructionKind::push && kind != program::InstructionKind::pull;
}

/// Compares what the ranks of every group do with each other, instruction by instruction, in issue order. One
/// iteration is enough: where it matches, all do.
class Matching {
 public:
  Matching(const ProgramWorld& world, Findings& findings) : world_(world), findings_(findings) {}

  void check() {
    for (int rank = 0; rank < world_.size(); ++rank) {
      findings_.get_on();
      for (int i = 0; i < static_cast<int>(world_.program(rank).instructions.size()); ++i) collect(rank, i);
    }
    for (const auto& [channel, ends] : channels_) check_channel(channel, ends);
    for (const auto& [group, ranks] : collectives_) check_collectives(ranks);
    for (const auto& message : server_messages_) {
      findings_.get_on();
      check_message(message);
    }
    check_last_pushes();
    check_clocks();
    for (int server = 0; server < world_.size(); ++server) {
      findings_.get_on();
      check_outboxes(server);
    }
  }

 private:
  struct End {
    int instruction;
    const program::Operand* operand;
  };
  using Channel = std::tuple<int, int, int>;  // group, source, destination
  struct Ends {
    std::vector<End> sends, receives;
  };
  struct Message {
    int rank, instruction;
    const program::Operand* operand;
  };

  void collect(int rank, int index) {
    const program::Instruction& i = world_.instruction(rank, index);
    if (!program::communicates(i.kind)) return;
    const int group = world_.group_id(rank, i);
    if (is_collective(i.kind)) {
      check_channel_of_order(rank, index);
      auto& of_group = collectives_[group];
      if (of_group.empty())
        for (int member : world_.members(rank, i)) of_group.try_emplace(member);
      of_group[rank].push_back(index);
    } else if (i.kind == program::InstructionKind::exchange) {
      for (const program::Operand& operand : i.operands) {
        const int peer = world_.peer_of(rank, i, operand);
        if (operand.role == program::Role::send)
          channels_[{group, rank, peer}].sends.push_back({index, &operand});
        else
          channels_[{group, peer, rank}].receives.push_back({index, &operand});
      }
    } else {
      for (const program::Operand& operand : i.operands)
        if (operand.role == moved_role(i.kind)) server_messages_.push_back({rank, index, &operand});
    }
  }

  void check_channel_of_order(int rank, int index) {
    const program::Instruction& i = world_.instruction(rank, index);
    const program::Group& channel = nth(world_.program(rank).groups, i.group);
    if (i.ordered && channel.transport != program::Transport::shared_memory)
      findings_.add(
          kMatching, rank, index,
          fmt::format(
              "it is ordered, but the transport of group '{}' is '{}'; only shared_memory sums in that order",
              channel.name, program::name_of(channel.transport)));
  }

  void check_channel(const Channel& channel, const Ends& ends) {
    const auto [group, source, destination] = channel;
    const size_t both = std::min(ends.sends.size(), ends.receives.size());
    for (size_t m = 0; m < both; ++m) {
      const program::Operand &send = *ends.sends[m].operand, &receive = *ends.receives[m].operand;
      if (send.range.size_bytes == receive.range.size_bytes && send.dtype == receive.dtype) continue;
      return findings_.add(
          kMatching, source, ends.sends[m].instruction,
          fmt::format(
              "its message {} to rank {} is {} bytes of {} ({}); {} there expects {} bytes of {} ({})", m,
              destination, send.range.size_bytes, name_of(send.dtype),
              describe(world_.program(source), send.range),
              program::describe(world_.program(destination), ends.receives[m].instruction),
              receive.range.size_bytes, name_of(receive.dtype),
              describe(world_.program(destination), receive.range)));
    }
    if (ends.sends.size() > both) {
      findings_.add(kMatching, source, ends.sends[both].instruction,
                    fmt::format("rank {} never receives its message to it: {} sends, {} receives",
                                destination, ends.sends.size(), ends.receives.size()));
    } else if (ends.receives.size() > both) {
      findings_.add(kMatching, destination, ends.receives[both].instruction,
                    fmt::format("rank {} never sends the message expected from it: {} receives, {} sends",
                                source, ends.receives.size(), ends.sends.size()));
    }
  }

  /// What has to be equal on all ranks of a collective.
  std::string signature(int rank, int index) const {
    const program::Instruction& i = world_.instruction(rank, index);
    std::string text(program::name_of(i.kind));
    if (i.ordered) text = "ordered " + text;
    for (const program::Operand& operand : i.operands)
      if (operand.role == program::Role::data || operand.role == program::Role::verdict)
        text += fmt::format(", {} bytes of {} ({})", operand.range.size_bytes, name_of(operand.dtype),
                            program::name_of(operand.role));
    return text;
  }
  std::string signature_and_blocks(int rank, int index) const {
    const program::Blocks& blocks = world_.instruction(rank, index).blocks;
    return signature(rank, index) + (blocks.empty() ? "" : " in blocks " + to_text(blocks));
  }
  /// Blocks of many ranks may have a long text.
  bool matches(int rank, int index, int other_rank, int other) const {
    return signature(rank, index) == signature(other_rank, other) &&
           world_.instruction(rank, index).blocks == world_.instruction(other_rank, other).blocks;
  }

  void check_collectives(const std::map<int, std::vector<int>>& ranks) {
    const auto& [first_rank, first] = *ranks.begin();
    for (const auto& [rank, own] : ranks) {
      const size_t both = std::min(own.size(), first.size());
      size_t c = 0;
      while (c < both && matches(rank, own[c], first_rank, first[c])) ++c;
      if (c < both) {
        findings_.add(kMatching, rank, own[c],
                      fmt::format("collective {} of its group is here {}, and on rank {} {} ({})", c,
                                  signature_and_blocks(rank, own[c]), first_rank,
                                  signature_and_blocks(first_rank, first[c]),
                                  program::describe(world_.program(first_rank), first[c])));
      } else if (own.size() != first.size()) {
        const bool extra_here = own.size() > first.size();
        findings_.add(
            kMatching, extra_here ? rank : first_rank, extra_here ? own[both] : first[both],
            fmt::format("rank {} has no such collective: {} against {}", extra_here ? first_rank : rank,
                        std::min(own.size(), first.size()), std::max(own.size(), first.size())));
      }
    }
  }

  void check_message(const Message& message) {
    const program::Instruction& i = world_.instruction(message.rank, message.instruction);
    const program::Operand& operand = *message.operand;
    const int server = world_.peer_of(message.rank, i, operand);
    const int serve = world_.find_serve(server, world_.group_id(message.rank, i), i.segment, operand.index);
    if (serve < 0)
      return findings_.add(
          kMatching, message.rank, message.instruction,
          fmt::format("rank {} has no serve of segment {}, shard {}", server, i.segment, operand.index));
    const bool pushes = i.kind == program::InstructionKind::push;
    const int own_number = world_.rank_in_group(message.rank, i);
    bool found = false;  // every place where it may land
    for (const program::Operand& other : world_.instruction(server, serve).operands) {
      if (other.role != operand.role || (pushes && other.peer != own_number)) continue;
      if (other.range.size_bytes != operand.range.size_bytes || other.dtype != operand.dtype)
        findings_.add(
            kMatching, message.rank, message.instruction,
            fmt::format("it moves {} bytes of {}; rank {}, {}, has {} of {}", operand.range.size_bytes,
                        name_of(operand.dtype), server, program::describe(world_.program(server), serve),
                        other.range.size_bytes, name_of(other.dtype)));
      found = true;
    }
    if (found && pushes) ++pushes_[{server, serve, message.rank}];
    if (found) return;
    findings_.add(kMatching, message.rank, message.instruction,
                  fmt::format("rank {}, {}, takes nothing from rank {}", server,
                              program::describe(world_.program(server), serve), message.rank));
  }

  /// The last push of a step to each server says what the step came to: the server holds until then what has
  /// come without, and then scales or drops all of it.
  void check_last_pushes() {
    std::map<std::pair<int, int>, int> last;  // by worker and server: instruction
    std::set<std::pair<int, int>> held;
    for (const Message& message : server_messages_) {
      const program::Instruction& i = world_.instruction(message.rank, message.instruction);
      if (i.kind != program::InstructionKind::push) continue;
      const std::pair ends{message.rank, world_.peer_of(message.rank, i, *message.operand)};
      last[ends] = message.instruction;
      if (!has_verdict(i, 0)) held.insert(ends);
    }
    for (const auto& [ends, instruction] : last) {
      const auto [worker, server] = ends;
      const program::Instruction& push = world_.instruction(worker, instruction);
      const auto& all = world_.program(worker).instructions;
      const bool has_norm =
          std::ranges::find(all, program::InstructionKind::norm, &program::Instruction::kind) != all.end();
      if (!has_verdict(push, 0))
        findings_.add(kMatching, worker, instruction,
                      fmt::format("it is the step's last push to rank {}, but has no verdict", server));
      else if (held.contains(ends) && has_norm && !has_verdict(push, 1))
        findings_.add(
            kMatching, worker, instruction,
            fmt::format(
                "rank {} holds the step's pushes until this one, which lacks the norm's verdict on them",
                server));
    }
  }

  /// Part 0 is what workers agreed on, part 1 what the norm found.
  static bool has_verdict(const program::Instruction& push, int part) {
    return std::ranges::any_of(
        push.operands, [part](const auto& o) { return o.role == program::Role::verdict && o.index == part; });
  }

  /// What a serve expects of a worker comes once per iteration: a push is one tick of the worker's clock.
  void check_clocks() {
    for (int server = 0; server < world_.size(); ++server) {
      const program::Program& program = world_.program(server);
      for (int s = 0; s < static_cast<int>(program.instructions.size()); ++s) {
        const program::Instruction& serve = world_.instruction(server, s);
        if (serve.kind != program::InstructionKind::serve) continue;
        std::map<int, int> places;  // by worker: where its pushes land
        for (const program::Operand& operand : serve.operands)
          if (operand.role == program::Role::gradients) ++places[world_.peer_of(server, serve, operand)];
        for (const auto& [worker, count] : places)
          if (const int needed = std::max(serve.bound, 0) + 1; count != needed)
            findings_.add(kMatching, server, s,
                          fmt::format("it has {} places for pushes of rank {}, of which {} may wait to be "
                                      "applied",
                                      count, worker, needed));
        for (const program::Operand& operand : serve.operands) {
          if (operand.role != program::Role::gradients) continue;
          const int worker = world_.peer_of(server, serve, operand);
          const int count = pushes_[{server, s, worker}];
          if (count != 1)
            findings_.add(
                kMatching, server, s,
                fmt::format("rank {} pushes to it {} times per iteration; expected once", worker, count));
        }
      }
    }
  }

  /// Without a bound, a worker is answered from a place of its own, in which slices of all ranges follow each
  /// other.
  void check_outboxes(int server) {
    const program::Program& program = world_.program(server);
    std::set<std::tuple<int, int, int64_t, int64_t>> outboxes;  // worker, region
    for (int s = 0; s < static_cast<int>(program.instructions.size()); ++s) {
      const program::Instruction& serve = world_.instruction(server, s);
      if (serve.kind != program::InstructionKind::serve) continue;
      std::map<int, int> places;  // by worker; none of a worker that pushes are too few
      for (const program::Operand& operand : serve.operands)
        if (operand.role == program::Role::gradients) places[operand.peer];
      for (const program::Operand& operand : serve.operands) {
        if (!program::is_outbox(serve, operand)) continue;
        ++places[operand.peer];
        const program::Region region = program::region_of(program, operand.range);
        outboxes.emplace(operand.peer, region.index, region.begin, region.end);
      }
      for (const auto& [worker, count] : places)
        if (serve.bound < 0 && count != 1)
          findings_.add(kMatching, server, s,
                        fmt::format("it has {} places for answers to member {} of its group; expected one",
                                    count, worker));
    }
    for (int s = 0; s < static_cast<int>(program.instructions.size()) && !outboxes.empty(); ++s)
      for (const program::Operand& operand : world_.instruction(server, s).operands) {
        const program::Region region = program::region_of(program, operand.range);
        const bool is_outbox = program::is_outbox(world_.instruction(server, s), operand);
        for (const auto& [worker, index, begin, end] : outboxes)
          if (region.index == index && region.begin < end && begin < region.end &&
              !(is_outbox && operand.peer == worker))
            findings_.add(
                kMatching, server, s,
                fmt::format("its operand {} ({}) lies where answers to member {} of the servers' group "
                            "are sent from",
                            program::name_of(operand.role), describe(program, operand.range), worker));
      }
  }

  const ProgramWorld& world_;
  Findings& findings_;
  std::map<Channel, Ends> channels_;
  std::map<int, std::map<int, std::vector<int>>> collectives_;  // group, rank -> instructions
  std::vector<Message> server_messages_;
  std::map<std::tuple<int, int, int>, int> pushes_;  // (server, serve, worker) -> count
};

}  // namespace

void check_matching(const ProgramWorld& world, Findings& findings) { Matching(world, findings).check(); }

}  // namespace lockstep::proof
