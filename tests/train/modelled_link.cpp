#include "train/modelled_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "comm/forwarding_communicator.h"

namespace lockstep {
namespace {

/// A bound for runs that have gone wrong: nothing that works comes near it.
constexpr std::chrono::seconds kPatience{60};

class HeldCommunicator : public ForwardingCommunicator {
 public:
  HeldCommunicator(ModelledLink& link, int group, std::unique_ptr<Communicator> inner)
      : ForwardingCommunicator(std::move(inner)), link_(link), group_(group) {}

  Ticket all_reduce(void* data, int64_t count, DType dtype, ReduceOp op, Stream& stream) override {
    return hold([=, this, &stream] { return inner_->all_reduce(data, count, dtype, op, stream); });
  }
  Ticket reduce_scatter(void* data, int64_t count, DType dtype, ReduceOp op, Stream& stream) override {
    return hold([=, this, &stream] { return inner_->reduce_scatter(data, count, dtype, op, stream); });
  }
  Ticket all_gather(void* data, int64_t block_bytes, Stream& stream) override {
    return hold([=, this, &stream] { return inner_->all_gather(data, block_bytes, stream); });
  }
  Ticket broadcast(void* data, int64_t size_bytes, int root, Stream& stream) override {
    return hold([=, this, &stream] { return inner_->broadcast(data, size_bytes, root, stream); });
  }
  Ticket exchange(std::span<const Transfer> transfers, Stream& stream) override {
    return hold([this, list = std::vector<Transfer>(transfers.begin(), transfers.end()), &stream] {
      return inner_->exchange(list, stream);
    });
  }
  Ticket barrier(Stream& stream) override {
    return hold([this, &stream] { return inner_->barrier(stream); });
  }

  bool poll(Ticket operation) override {
    while (!held_.empty() && link_.has_arrived(group_, started_)) go_on();
    return (held_.empty() || operation.number <= started_) && inner_->poll(operation);
  }
  void synchronize(Stream& stream, Deadline deadline) override {
    while (!held_.empty() && link_.wait_for_arrival(group_, started_, deadline)) go_on();
    inner_->synchronize(stream, deadline);
  }
  void abort(std::string_view reason) noexcept override {
    inner_->abort(reason);
    link_.give_up();
  }

 private:
  /// Every operation held becomes one of the inner communicator: both have one number.
  Ticket hold(std::function<Ticket()> operation) {
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
  std::deque<std::function<Ticket()>> held_;
  int64_t started_ = 0;  // on the inner communicator
};

/// What an operation puts on the link.
int64_t bytes_of(const Instruction& instruction) {
  int64_t sent = 0;
  for (const auto& operand : instruction.operands)
    if (operand.role == Role::send || operand.role == Role::data) sent += operand.range.size_bytes;
  return sent;
}

}  // namespace

ModelledLink::ModelledLink(std::vector<Program> programs, const LinkSpeed& speed, bool issues_in_order)
    : programs_(std::move(programs)),
      speed_(speed),
      issues_in_order_(issues_in_order),
      ranks_(programs_.size()) {
  for (const Program& program : programs_) {
    auto& by_group = operations_.emplace_back(program.groups.size());
    for (size_t i = 0; i < program.instructions.size(); ++i)
      if (communicates(program.instructions[i].kind))
        by_group[static_cast<size_t>(program.instructions[i].group)].push_back(static_cast<int>(i));
  }
  carried_.assign(programs_[0].groups.size(), 0);
  before_ = carried_;
}

std::unique_ptr<Communicator> ModelledLink::attach(int group, std::unique_ptr<Communicator> inner) {
  return std::make_unique<HeldCommunicator>(*this, group, std::move(inner));
}

void ModelledLink::begin_iteration(int rank) {
  std::unique_lock lock(mutex_);
  Rank& own = ranks_[static_cast<size_t>(rank)];
  const int number = own.iterations_begun++;
  changed_.notify_all();
  changed_.wait(lock, [&] { return iteration_ >= number || given_up_; });
}

void ModelledLink::started(int rank, int instruction) {
  std::lock_guard lock(mutex_);
  if (given_up_) return;
  Rank& own = ranks_[static_cast<size_t>(rank)];
  const auto index = static_cast<size_t>(instruction);
  if (own.started[index] || !may_start(rank, instruction, own.started))
    complain(fmt::format("rank {}: {} started before what it depends on was complete", rank,
                         describe(programs_[static_cast<size_t>(rank)], instruction)));
  own.started[index] = true;
  own.times[index] = clock_;
  changed_.notify_all();
}

/// Whether what depends on an instruction that has started may start. Computation ends by itself, a
/// communication when the link has carried it.
bool ModelledLink::is_done(int rank, int instruction) const {
  const auto& i = programs_[static_cast<size_t>(rank)].instructions[static_cast<size_t>(instruction)];
  if (!communicates(i.kind)) return true;
  const auto group = static_cast<size_t>(i.group);
  const auto& list = operations_[static_cast<size_t>(rank)][group];
  return before_[group] + (std::find(list.begin(), list.end(), instruction) - list.begin()) < carried_[group];
}

bool ModelledLink::may_start(int rank, int instruction, const std::vector<bool>& started) const {
  const auto& list = programs_[static_cast<size_t>(rank)].instructions;
  const auto& own = list[static_cast<size_t>(instruction)];
  const auto complete = [&](int other) {
    return started[static_cast<size_t>(other)] && is_done(rank, other);
  };
  for (const auto& dependency : own.after)
    if (dependency.distance == 0 && !complete(dependency.instruction)) return false;
  for (int other = 0; other < instruction; ++other) {
    const auto& earlier = list[static_cast<size_t>(other)];
    if (earlier.lane == own.lane && !complete(other)) return false;
    if (issues_in_order_ && communicates(earlier.kind) && communicates(own.kind) &&
        !started[static_cast<size_t>(other)])
      return false;
  }
  return true;
}

std::vector<bool> ModelledLink::allowed(int rank) const {
  // Program order is one of the allowed ones, so one pass finds all.
  std::vector<bool> started(programs_[static_cast<size_t>(rank)].instructions.size());
  for (size_t i = 0; i < started.size(); ++i) started[i] = may_start(rank, static_cast<int>(i), started);
  return started;
}

bool ModelledLink::await_all_that_may_run(std::unique_lock<std::mutex>& lock) {
  for (size_t rank = 0; rank < ranks_.size() && !given_up_; ++rank) {
    const auto wanted = allowed(static_cast<int>(rank));
    const auto& started = ranks_[rank].started;
    if (changed_.wait_for(lock, kPatience, [&] { return started == wanted || given_up_; })) continue;
    for (size_t i = 0; i < wanted.size(); ++i)
      if (started[i] != wanted[i]) {
        complain(fmt::format("rank {}: {} should {} at tick {}", rank,
                             describe(programs_[rank], static_cast<int>(i)),
                             wanted[i] ? "have started" : "not run yet", clock_));
        break;
      }
  }
  return !given_up_;
}

bool ModelledLink::all_have_reached(size_t group, int64_t operation) const {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto& list = operations_[rank][group];
    if (operation >= static_cast<int64_t>(list.size()) ||
        !ranks_[rank].started[static_cast<size_t>(list[static_cast<size_t>(operation)])])
      return false;
  }
  return true;
}

int64_t ModelledLink::arrival_time(int group, int64_t operation) {
  const auto [known, is_new] = due_.try_emplace({group, operation});
  if (is_new) {
    const int instruction = operations_[0][static_cast<size_t>(group)][static_cast<size_t>(operation)];
    const int64_t bytes = bytes_of(programs_[0].instructions[static_cast<size_t>(instruction)]);
    busy_until_ = std::max(busy_until_, clock_) + speed_.latency +
                  (bytes + speed_.bytes_per_tick - 1) / speed_.bytes_per_tick;
    known->second = busy_until_;
  }
  return known->second;
}

void ModelledLink::carry(int iterations) {
  std::unique_lock lock(mutex_);
  for (int k = 0; k < iterations && !given_up_; ++k) {
    changed_.wait(lock, [&] {
      return given_up_ ||
             std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& r) { return r.iterations_begun > k; });
    });
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].started.assign(programs_[rank].instructions.size(), false);
      ranks_[rank].times.assign(programs_[rank].instructions.size(), -1);
    }
    before_ = carried_;
    due_.clear();
    clock_ = busy_until_ = 0;
    iteration_ = k;
    changed_.notify_all();
    while (await_all_that_may_run(lock)) {
      // Of each group, the operation that waits for the link, where all ranks have reached it.
      int next_group = -1;
      int64_t next_time = 0;
      for (size_t g = 0; g < carried_.size(); ++g) {
        const int64_t operation = carried_[g] - before_[g];
        if (!all_have_reached(g, operation)) continue;
        const int64_t time = arrival_time(static_cast<int>(g), operation);
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
}

std::string ModelledLink::complaint() const {
  std::lock_guard lock(mutex_);
  return complaint_;
}

std::vector<int64_t> ModelledLink::start_times(int rank) const {
  std::lock_guard lock(mutex_);
  return ranks_[static_cast<size_t>(rank)].times;
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

}  // namespace lockstep
