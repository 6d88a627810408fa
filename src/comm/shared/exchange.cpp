#include "comm/shared/exchange.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/index.h"
#include "comm/copy_bytes.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

std::byte* bytes_of(CellHeader& cell) { return reinterpret_cast<std::byte*>(&cell + 1); }

}  // namespace

Exchange::Exchange(const SharedArea& area, int rank, std::function<void()> reserve_outbox)
    : area_(area),
      rank_(rank),
      reserve_outbox_(std::move(reserve_outbox)),
      out_(static_cast<size_t>(area.layout().size())),
      in_(static_cast<size_t>(area.layout().size())) {}

void Exchange::begin(const Operation& operation) {
  queues_.clear();
  for (const Transfer& transfer : operation.transfers) {
    const auto fits = [&](const Queue& q) {
      return q.peer == transfer.peer && q.direction == transfer.direction;
    };
    auto queue = std::find_if(queues_.begin(), queues_.end(), fits);
    if (queue == queues_.end()) queue = queues_.insert(queue, {transfer.peer, transfer.direction, {}});
    queue->transfers.push_back(&transfer);
    if (queue->sends() && reserve_outbox_) {
      reserve_outbox_();
      reserve_outbox_ = nullptr;
    }
  }
  left_ = queues_.size();
}

int64_t Exchange::advance() {
  int64_t total = 0;
  for (Queue& queue : queues_)
    if (!queue.complete()) total += queue.sends() ? send_cell(queue) : receive_cell(queue);
  return total > 0 ? total : kWaiting;
}

/// A message takes at least one cell, even of no bytes.
int64_t Exchange::send_cell(Queue& queue) {
  End& end = nth(out_, queue.peer);
  Ring& ring = area_.ring(rank_, queue.peer);
  if (end.own - end.other == SharedLayout::kCells) {
    end.other = ring.received.cells.load(std::memory_order_acquire);
    if (end.own - end.other == SharedLayout::kCells) return 0;
  }
  const Transfer& transfer = *queue.transfers[queue.next];
  CellHeader& cell = area_.cell(rank_, queue.peer, end.own);
  const int64_t bytes = std::min(area_.layout().cell_bytes(), transfer.size_bytes - queue.moved);
  cell.message_bytes = transfer.size_bytes;
  copy_bytes(bytes_of(cell), static_cast<const std::byte*>(transfer.data) + queue.moved, bytes);
  ring.sent.cells.store(++end.own, std::memory_order_release);
  moved(queue, bytes);
  return bytes + kPieceBytes;
}

int64_t Exchange::receive_cell(Queue& queue) {
  End& end = nth(in_, queue.peer);
  Ring& ring = area_.ring(queue.peer, rank_);
  if (end.own == end.other) {
    end.other = ring.sent.cells.load(std::memory_order_acquire);
    if (end.own == end.other) return 0;
  }
  const Transfer& transfer = *queue.transfers[queue.next];
  CellHeader& cell = area_.cell(queue.peer, rank_, end.own);
  if (cell.message_bytes != transfer.size_bytes)
    throw CommError(fmt::format("rank {} sends {} bytes to rank {}, which expects {} bytes", queue.peer,
                                cell.message_bytes, rank_, transfer.size_bytes),
                    ExitCode::internal);
  const int64_t bytes = std::min(area_.layout().cell_bytes(), transfer.size_bytes - queue.moved);
  copy_bytes(static_cast<std::byte*>(transfer.data) + queue.moved, bytes_of(cell), bytes);
  ring.received.cells.store(++end.own, std::memory_order_release);
  moved(queue, bytes);
  return bytes + kPieceBytes;
}

void Exchange::moved(Queue& queue, int64_t bytes) {
  queue.moved += bytes;
  if (queue.moved < queue.transfers[queue.next]->size_bytes) return;
  queue.moved = 0;
  ++queue.next;
  if (queue.complete()) --left_;
}

std::vector<std::string> Exchange::pending() const {
  std::vector<std::string> names;
  for (const Queue& queue : queues_)
    for (size_t i = queue.next; i < queue.transfers.size(); ++i)
      names.push_back(describe(*queue.transfers[i]));
  return names;
}

}  // namespace lockstep::comm
