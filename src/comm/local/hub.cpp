#include "comm/local/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/index.h"
#include "comm/copy_bytes.h"
#include "comm/reduce.h"

namespace lockstep::comm {
namespace {

std::byte* block_of(const Operation& operation, int block) {
  return static_cast<std::byte*>(operation.data) + block * operation.block_bytes();
}

}  // namespace

Hub::Hub(std::string name, int size)
    : name_(std::move(name)), death_(std::make_shared<Death>()), queues_(static_cast<size_t>(size)) {}

std::shared_ptr<PostOffice> Hub::post_office() {
  const std::lock_guard lock(mutex_);
  if (!post_office_) post_office_ = std::make_shared<PostOffice>(name_, size());
  return post_office_;
}

std::shared_ptr<Hub> Hub::regroup(std::span<const int> members) {
  const std::lock_guard lock(mutex_);
  const std::vector<int> key(members.begin(), members.end());
  Forming& forming = forming_[key];
  if (!forming.hub) forming.hub = std::make_shared<Hub>(name_, static_cast<int>(key.size()));
  const std::shared_ptr<Hub> hub = forming.hub;
  if (++forming.joined == key.size()) forming_.erase(key);
  return hub;
}

Hub::Entry* Hub::head(int rank) {
  auto& queue = nth(queues_, rank);
  return queue.empty() ? nullptr : &queue.front();
}

void Hub::start(int rank, Operation operation) { push(rank, {.operation = std::move(operation)}); }

void Hub::push(int rank, Entry entry) {
  entry.started = Clock::now();
  entry.matched.assign(entry.operation.transfers.size(), false);
  std::lock_guard lock(mutex_);
  if (death_->marked()) return;
  nth(queues_, rank).push_back(std::move(entry));
  progress();
}

int64_t Hub::outstanding(int rank) const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(nth(queues_, rank).size());
}

bool Hub::wait(int rank, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto over = [&] { return empty(rank) || death_->marked(); };
  if (deadline == Deadline::max())
    changed_.wait(lock, over);
  else if (!changed_.wait_until(lock, deadline, over))
    expire(rank);
  return empty(rank);
}

void Hub::die(std::string_view reason, ExitCode code) noexcept {
  std::lock_guard lock(mutex_);
  kill(reason, code);
}

void Hub::leave(int rank) noexcept {
  std::lock_guard lock(mutex_);
  if (!empty(rank))
    kill(fmt::format("rank {} went away with operations outstanding", rank), ExitCode::peer_lost);
}

bool Hub::split(int rank, int color, int key, Seat& seat) {
  push(rank, {.operation = {OperationKind::split}, .color = color, .key = key, .seat = &seat});
  return wait(rank, Deadline::max()) && seat.seated;
}

// REQUIRES for everything below: mutex_ is held.

void Hub::kill(std::string_view reason, ExitCode code) noexcept {
  death_->mark(reason, code);
  changed_.notify_all();
}

void Hub::expire(int rank) {
  const Entry& entry = *head(rank);
  const double waited_ms = milliseconds_between(entry.started, Clock::now());
  kill(fmt::format("rank {}: {}", rank, expired_message(entry.operation, waited_ms, pending_of(rank))),
       ExitCode::hang);
}

void Hub::progress() {
  bool moved = true, any = false;
  while (moved && !death_->marked()) {
    moved = run_collective();
    for (int rank = 0; rank < size() && !death_->marked(); ++rank) moved |= match_transfers(rank);
    any |= moved;
  }
  if (any) changed_.notify_all();
}

bool Hub::run_collective() {
  for (int rank = 0; rank < size(); ++rank)
    if (const Entry* entry = head(rank); entry == nullptr || entry->operation.kind == OperationKind::exchange)
      return false;
  check_collective();
  if (death_->marked()) return false;
  move_data();
  for (auto& queue : queues_) queue.pop_front();
  return true;
}

void Hub::check_collective() {
  const Operation& first = head(0)->operation;
  for (int rank = 1; rank < size(); ++rank) {
    const Operation& other = head(rank)->operation;
    if (other.kind == first.kind && other.count == first.count && other.dtype == first.dtype &&
        other.reduce_op == first.reduce_op && other.root == first.root)
      continue;
    kill(fmt::format("collectives do not match: rank 0 started {}, rank {} started {}", describe(first), rank,
                     describe(other)),
         ExitCode::internal);
    return;
  }
}

void Hub::move_data() {
  const Operation& first = head(0)->operation;
  const int64_t bytes = first.block_bytes();
  switch (first.kind) {
    case OperationKind::all_reduce:
      // Along the canonical tree: doubling distances meet at the largest power of two below any number of
      // ranks.
      for (int distance = 1; distance < size(); distance *= 2)
        for (int rank = 0; rank + distance < size(); rank += 2 * distance)
          reduce_into(head(rank)->operation.data, head(rank + distance)->operation.data, first.count,
                      first.dtype, first.reduce_op);
      for (int rank = 1; rank < size(); ++rank) copy_bytes(head(rank)->operation.data, first.data, bytes);
      return;
    case OperationKind::reduce_scatter:
      for (int owner = 0; owner < size(); ++owner) {
        std::byte* result = block_of(head(owner)->operation, owner);
        for (int rank = 0; rank < size(); ++rank)
          if (rank != owner)
            reduce_into(result, block_of(head(rank)->operation, owner), first.count, first.dtype,
                        first.reduce_op);
      }
      return;
    case OperationKind::all_gather:
      for (int from = 0; from < size(); ++from)
        for (int to = 0; to < size(); ++to)
          if (from != to)
            copy_bytes(block_of(head(to)->operation, from), block_of(head(from)->operation, from), bytes);
      return;
    case OperationKind::broadcast:
      for (int to = 0; to < size(); ++to)
        if (to != first.root) copy_bytes(head(to)->operation.data, head(first.root)->operation.data, bytes);
      return;
    case OperationKind::split:
      return make_seats();
    case OperationKind::barrier:
    case OperationKind::exchange:
      return;
  }
}

void Hub::make_seats() {
  std::map<int, std::vector<int>> members;  // color to old ranks, in the order of their new ones
  for (int rank = 0; rank < size(); ++rank)
    if (head(rank)->color >= 0) members[head(rank)->color].push_back(rank);
  for (int rank = 0; rank < size(); ++rank) head(rank)->seat->seated = true;
  for (auto& [color, ranks] : members) {
    std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return head(a)->key < head(b)->key; });
    const auto hub =
        std::make_shared<Hub>(fmt::format("{}/{}", name_, color), static_cast<int>(ranks.size()));
    for (size_t i = 0; i < ranks.size(); ++i) *head(ranks[i])->seat = {true, hub, static_cast<int>(i)};
  }
}

/// Completes what `source` sends to ranks whose head expects it; then `source`'s own operation, if it is
/// done.
bool Hub::match_transfers(int source) {
  bool moved = false;
  Entry* entry = head(source);
  if (entry == nullptr || entry->operation.kind != OperationKind::exchange) return false;
  const auto& transfers = entry->operation.transfers;
  for (size_t i = 0; i < transfers.size() && !death_->marked(); ++i)
    if (!entry->matched[i] && transfers[i].direction == Transfer::Direction::send)
      moved |= match_transfer(source, i);
  if (death_->marked() ||
      !std::all_of(entry->matched.begin(), entry->matched.end(), [](bool m) { return m; }))
    return moved;
  nth(queues_, source).pop_front();
  return true;
}

/// In order of posting: an earlier send to the same peer has taken the earlier receive, or there was none for
/// both.
bool Hub::match_transfer(int source, size_t index) {
  Entry& sender = *head(source);
  const Transfer& send = sender.operation.transfers[index];
  Entry* receiver = head(send.peer);
  if (receiver == nullptr || receiver->operation.kind != OperationKind::exchange) return false;
  const auto& theirs = receiver->operation.transfers;
  for (size_t i = 0; i < theirs.size(); ++i) {
    const Transfer& receive = theirs[i];
    if (receiver->matched[i] || receive.direction != Transfer::Direction::receive || receive.peer != source)
      continue;
    if (receive.size_bytes != send.size_bytes) {
      kill(fmt::format("rank {} sends {} bytes to rank {}, which expects {} bytes", source, send.size_bytes,
                       send.peer, receive.size_bytes),
           ExitCode::internal);
      return false;
    }
    copy_bytes(receive.data, send.data, send.size_bytes);
    sender.matched[index] = true;
    receiver->matched[i] = true;
    return true;
  }
  return false;
}

std::vector<std::string> Hub::pending_of(int rank) const {
  std::vector<std::string> pending;
  const Entry& entry = *head(rank);
  if (entry.operation.kind == OperationKind::exchange) {
    for (size_t i = 0; i < entry.matched.size(); ++i)
      if (!entry.matched[i]) pending.push_back(describe(entry.operation.transfers[i]));
    return pending;
  }
  for (int peer = 0; peer < size(); ++peer) {
    const Entry* other = head(peer);
    if (other == nullptr)
      pending.push_back(fmt::format("rank {}, which has started nothing", peer));
    else if (other->operation.kind == OperationKind::exchange)
      pending.push_back(fmt::format("rank {}, which is in {}", peer, describe(other->operation)));
  }
  return pending;
}

}  // namespace lockstep::comm
