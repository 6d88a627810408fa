#include "train/programs/modelled_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "comm/forwarding_communicator.h"
#include "program/lane_overlap.h"
#include "program/ring_schedule.h"

namespace lockstep::train {
namespace {

/// A bound for runs that have gone wrong: nothing that works comes near it.
constexpr std::chrono::seconds kPatience{60};

class HeldCommunicator : public comm::ForwardingCommunicator {
 public:
  HeldCommunicator(ModelledLink& link, int group, std::unique_ptr<comm::Communicator> inner)
      : comm::ForwardingCommunicator(std::move(inner)), link_(link), group_(group) {}

  comm::Ticket all_reduce(void* data, int64_t count, DType dtype, comm::ReduceOp op,
                          device::Stream& stream) override {
    return hold([=, this, &stream] { return inner_->all_reduce(data, count, dtype, op, stream); });
  }
  comm::Ticket all_gather(void* data, int64_t block_bytes, device::Stream& stream) override {
    return hold([=, this, &stream] { return inner_->all_gather(data, block_bytes, stream); });
  }
  comm::Ticket broadcast(void* data, int64_t size_bytes, int root, device::Stream& stream) override {
    return hold([=, this, &stream] { return inner_->broadcast(data, size_bytes, root, stream); });
  }
  comm::Ticket exchange(std::span<const comm::Transfer> transfers, device::Stream& stream) override {
    return hold([this, list = std::vector<comm::Transfer>(transfers.begin(), transfers.end()), &stream] {
      return inner_->exchange(list, stream);
    });
  }
  comm::Ticket barrier(device::Stream& stream) override {
    return hold([this, &stream] { return inner_->barrier(stream); });
  }

  bool poll(comm::Ticket operation) override {
    while (!held_.empty() && link_.has_arrived(group_, started_)) go_on();
    return (held_.empty() || operation.number <= started_) && inner_->poll(operation);
  }
  void synchronize(device::Stream& stream, Deadline deadline) override {
    while (!held_.empty() && link_.wait_for_arrival(group_, started_, deadline)) go_on();
    inner_->synchronize(stream, deadline);
  }
  void abort(std::string_view reason) noexcept override {
    inner_->abort(reason);
    link_.give_up();
  }

 private:
  /// Every operation held becomes one of the inner communicator: both have one number.
  comm::Ticket hold(std::function<comm::Ticket()> operation) {
    held_.push_back(std::move(operation));
    return {started_ + static_cast<int64_t>(held_.size())};
  }
  void go_on() {
    held_.front()();
    held_.pop_front();
    ++started_;
  }

  ModelledLink& link_;
  int group_;
  std::deque<std::function<comm::Ticket()>> held_;
  int64_t started_ = 0;  // on the inner communicator
};

/// What each of an instruction's operations puts on the link: several of a ring, one of all others.
std::vector<int64_t> bytes_of(const program::Program& program, const program::Instruction& instruction) {
  if (!instruction.blocks.empty()) {
    const auto& members = program.group(instruction.group).members;
    const auto ranks = static_cast<int>(members.size());
    const auto pass = instruction.kind == program::InstructionKind::ring_reduce_scatter
                          ? program::RingPass::reduce_scatter
                          : program::RingPass::all_gather;
    std::vector<int64_t> rounds;
    for (int round = 0; round + 1 < ranks; ++round) {
      const auto blocks = program::ring_round(pass, members.index_of(program.rank), ranks, round);
      const int64_t sent = block_bytes(instruction.blocks, blocks.send, ranks);
      if (sent + block_bytes(instruction.blocks, blocks.receive, ranks) > 0) rounds.push_back(sent);
    }
    return rounds;
  }
  int64_t sent = 0;
  for (const auto& operand : instruction.operands)
    if (operand.role == program::Role::send || operand.role == program::Role::data)
      sent += operand.range.size_bytes;
  return {sent};
}

}  // namespace

ModelledLink::ModelledLink(std::vector<program::Program> programs, int iterations, const LinkSpeed& speed,
                           bool issues_in_order)
    : programs_(std::move(programs)),
      iterations_(iterations),
      speed_(speed),
      issues_in_order_(issues_in_order),
      ranks_(programs_.size()) {
  for (size_t r = 0; r < programs_.size(); ++r) {
    const program::Program& program = programs_[r];
    auto& by_group = operations_.emplace_back(program.groups.size());
    for (int node = 0; node < count_of(r) * iterations; ++node)
      if (const program::Instruction& i = instruction(r, node); program::communicates(i.kind))
        for (const int64_t bytes : bytes_of(program, i))
          by_group[static_cast<size_t>(i.group)].push_back({node, bytes});
    ranks_[r].started.assign(static_cast<size_t>(count_of(r) * iterations), false);
    ranks_[r].times.assign(ranks_[r].started.size(), -1);
    reports_.push_back(program::report_instructions(program));
    starts_ahead_.push_back(issues_in_order_ ? program::independent_predecessors(program)
                                             : std::vector<int>(program.instructions.size()));
  }
  carried_.assign(programs_[0].groups.size(), 0);
}

const program::Instruction& ModelledLink::instruction(size_t rank, int node) const {
  return programs_[rank].instructions[static_cast<size_t>(node % count_of(rank))];
}

std::string ModelledLink::describe_node(size_t rank, int node) const {
  return fmt::format("{} of iteration {}", program::describe(programs_[rank], node % count_of(rank)),
                     node / count_of(rank));
}

std::unique_ptr<comm::Communicator> ModelledLink::attach(int group,
                                                         std::unique_ptr<comm::Communicator> inner) {
  return std::make_unique<HeldCommunicator>(*this, group, std::move(inner));
}

void ModelledLink::begin_iteration(int rank) {
  std::lock_guard lock(mutex_);
  Rank& own = ranks_[static_cast<size_t>(rank)];
  if (!may_begin(static_cast<size_t>(rank), static_cast<int>(own.begun.size()), own.started))
    complain(fmt::format("rank {}: iteration {} began before the report of the one before it was complete",
                         rank, own.begun.size()));
  own.begun.push_back(clock_);
  changed_.notify_all();
}

void ModelledLink::started(int rank, int64_t iteration, int instruction) {
  std::lock_guard lock(mutex_);
  if (given_up_) return;
  const auto r = static_cast<size_t>(rank);
  Rank& own = ranks_[r];
  const int node = static_cast<int>(iteration) * count_of(r) + instruction;
  const auto index = static_cast<size_t>(node);
  if (own.started[index] || !may_start(r, node, own.started))
    complain(fmt::format("rank {}: {} started before what it depends on was complete", rank,
                         describe_node(r, node)));
  own.started[index] = true;
  own.times[index] = clock_;
  changed_.notify_all();
}

/// Whether what depends on an instruction that has started may start. Computation ends by itself, a
/// communication when the link has carried it.
bool ModelledLink::is_done(size_t rank, int node) const {
  const program::Instruction& i = instruction(rank, node);
  if (!program::communicates(i.kind)) return true;
  const auto group = static_cast<size_t>(i.group);
  const auto& list = operations_[rank][group];
  const auto last =
      std::find_if(list.rbegin(), list.rend(), [&](const Operation& o) { return o.node == node; });
  return list.rend() - last <= carried_[group];
}

/// The caller of run() begins an iteration when the report of the one before is complete.
bool ModelledLink::may_begin(size_t rank, int iteration, const std::vector<bool>& started) const {
  const auto complete = [&](int node) { return started[static_cast<size_t>(node)] && is_done(rank, node); };
  const int last = (iteration - 1) * count_of(rank);
  if (iteration == 0) return true;
  return std::all_of(reports_[rank].begin(), reports_[rank].end(),
                     [&](int report) { return complete(last + report); });
}

bool ModelledLink::may_start(size_t rank, int node, const std::vector<bool>& started) const {
  const auto complete = [&](int other) {
    return started[static_cast<size_t>(other)] && is_done(rank, other);
  };
  const program::Instruction& own = instruction(rank, node);
  const int count = count_of(rank), iteration = node / count;
  if (!may_begin(rank, iteration, started)) return false;
  // Nothing is left of the one before the last.
  for (int other = 0; other < (iteration - 1) * count; ++other)
    if (!complete(other)) return false;
  for (const auto& dependency : own.after) {
    const int other = (iteration - dependency.distance) * count + dependency.instruction;
    if (other >= 0 && !complete(other)) return false;
  }
  int behind = starts_ahead_[rank][static_cast<size_t>(node % count)];  // those of its lane
  for (int other = node - 1; other >= 0; --other) {
    const program::Instruction& earlier = instruction(rank, other);
    const bool is_enough = earlier.lane == own.lane && behind-- > 0 && started[static_cast<size_t>(other)];
    if (earlier.lane == own.lane && !is_enough && !complete(other)) return false;
    if (issues_in_order_ && program::communicates(earlier.kind) && program::communicates(own.kind) &&
        !started[static_cast<size_t>(other)])
      return false;
  }
  return true;
}

ModelledLink::Allowed ModelledLink::allowed(size_t rank) const {
  // Program order is one of the allowed ones, so one pass finds all.
  Allowed all{0, std::vector<bool>(ranks_[rank].started.size())};
  for (size_t i = 0; i < all.started.size(); ++i)
    all.started[i] = may_start(rank, static_cast<int>(i), all.started);
  while (all.begun < static_cast<size_t>(iterations_) &&
         may_begin(rank, static_cast<int>(all.begun), all.started))
    ++all.begun;
  return all;
}

bool ModelledLink::await_all_that_may_run(std::unique_lock<std::mutex>& lock) {
  for (size_t rank = 0; rank < ranks_.size() && !given_up_; ++rank) {
    const Allowed wanted = allowed(rank);
    const Rank& own = ranks_[rank];
    const auto there = [&] {
      return (own.started == wanted.started && own.begun.size() == wanted.begun) || given_up_;
    };
    if (changed_.wait_for(lock, kPatience, there)) continue;
    for (size_t i = 0; i < wanted.started.size(); ++i)
      if (own.started[i] != wanted.started[i]) {
        complain(fmt::format("rank {}: {} should {} at tick {}", rank,
                             describe_node(rank, static_cast<int>(i)),
                             wanted.started[i] ? "have started" : "not run yet", clock_));
        break;
      }
    if (!given_up_)
      complain(
          fmt::format("rank {}: iteration {} should have begun at tick {}", rank, own.begun.size(), clock_));
  }
  return !given_up_;
}

bool ModelledLink::all_have_reached(size_t group, int64_t operation) const {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto& list = operations_[rank][group];
    if (operation >= static_cast<int64_t>(list.size()) ||
        !ranks_[rank].started[static_cast<size_t>(list[static_cast<size_t>(operation)].node)])
      return false;
  }
  return true;
}

int64_t ModelledLink::arrival_time(int group, int64_t operation) {
  const auto [known, is_new] = due_.try_emplace({group, operation});
  if (is_new) {
    const int64_t bytes = operations_[0][static_cast<size_t>(group)][static_cast<size_t>(operation)].bytes;
    busy_until_ = std::max(busy_until_, clock_) + speed_.latency +
                  (bytes + speed_.bytes_per_tick - 1) / speed_.bytes_per_tick;
    known->second = busy_until_;
  }
  return known->second;
}

void ModelledLink::carry() {
  std::unique_lock lock(mutex_);
  while (await_all_that_may_run(lock)) {
    // Of each group, the operation that waits for the link, where all ranks have reached it.
    int next_group = -1;
    int64_t next_time = 0;
    for (size_t g = 0; g < carried_.size(); ++g) {
      if (!all_have_reached(g, carried_[g])) continue;
      const int64_t time = arrival_time(static_cast<int>(g), carried_[g]);
      if (next_group < 0 || time < next_time) next_group = static_cast<int>(g), next_time = time;
    }
    if (next_group < 0) break;
    clock_ = next_time;
    ++carried_[static_cast<size_t>(next_group)];
    changed_.notify_all();
  }
  for (size_t rank = 0; rank < ranks_.size() && !given_up_; ++rank)
    if (const auto& started = ranks_[rank].started;
        std::find(started.begin(), started.end(), false) != started.end())
      complain(fmt::format("rank {} stands, with nothing on the link", rank));
}

std::string ModelledLink::complaint() const {
  std::lock_guard lock(mutex_);
  return complaint_;
}

std::vector<int64_t> ModelledLink::start_times(int rank) const {
  std::lock_guard lock(mutex_);
  const Rank& own = ranks_[static_cast<size_t>(rank)];
  std::vector<int64_t> times(own.times.end() - count_of(static_cast<size_t>(rank)), own.times.end());
  if (!own.begun.empty())
    for (int64_t& time : times) time -= own.begun.back();
  return times;
}

bool ModelledLink::has_arrived(int group, int64_t operation) const {
  std::lock_guard lock(mutex_);
  return given_up_ || operation < carried_[static_cast<size_t>(group)];
}

bool ModelledLink::wait_for_arrival(int group, int64_t operation, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto over = [&] { return given_up_ || operation < carried_[static_cast<size_t>(group)]; };
  return changed_.wait_until(lock, deadline, over);
}

void ModelledLink::give_up() noexcept {
  std::lock_guard lock(mutex_);
  given_up_ = true;
  changed_.notify_all();
}

/// Holds nobody any more: the run ends, and the test tells why.
void ModelledLink::complain(const std::string& what) {
  if (complaint_.empty()) complaint_ = what;
  given_up_ = true;
  changed_.notify_all();
}

}  // namespace lockstep::train
