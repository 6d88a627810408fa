#include "comm/local/post_office.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/copy_bytes.h"

namespace lockstep::comm {
namespace {

class LocalMessagePort : public MessagePort {
 public:
  LocalMessagePort(std::shared_ptr<PostOffice> office, int rank) : office_(std::move(office)), rank_(rank) {}
  ~LocalMessagePort() override { office_->leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return office_->size(); }
  Ticket start(const Transfer& transfer) override {
    const Ticket ticket = office_->start(rank_, transfer);
    (transfer.direction == Transfer::Direction::send ? transferred_.sent : transferred_.received) +=
        transfer.size_bytes;
    return ticket;
  }
  bool poll(Ticket& transfer) override { return office_->poll(rank_, transfer); }
  TransferredBytes transferred() const override { return transferred_; }
  void abort(std::string_view reason) noexcept override { office_->die(reason, ExitCode::peer_lost); }

 private:
  std::shared_ptr<PostOffice> office_;
  int rank_;
  TransferredBytes transferred_;
};

}  // namespace

std::unique_ptr<MessagePort> make_local_port(std::shared_ptr<PostOffice> office, int rank) {
  return std::make_unique<LocalMessagePort>(std::move(office), rank);
}

PostOffice::PostOffice(std::string name, int ranks)
    : name_(std::move(name)), tickets_(static_cast<size_t>(ranks)) {}

void PostOffice::check_alive(int rank) const {
  death_.check(fmt::format("rank {} of {} at port '{}' (local)", rank, size(), name_));
}

Ticket PostOffice::start(int rank, const Transfer& transfer) {
  const std::lock_guard lock(mutex_);
  check_alive(rank);
  const bool sends = transfer.direction == Transfer::Direction::send;
  const Ticket ticket = nth(tickets_, rank).add({transfer, false});
  Box& box = boxes_[sends ? std::pair(rank, transfer.peer) : std::pair(transfer.peer, rank)];
  (sends ? box.sends : box.receives).push_back({rank, ticket});
  if (box.sends.empty() || box.receives.empty()) return ticket;
  Waiting& send = nth(tickets_, box.sends.front().rank)[box.sends.front().ticket];
  Waiting& receive = nth(tickets_, box.receives.front().rank)[box.receives.front().ticket];
  if (send.transfer.size_bytes != receive.transfer.size_bytes) {
    death_.mark(
        fmt::format("rank {} sends {} bytes to rank {}, which expects {} bytes", receive.transfer.peer,
                    send.transfer.size_bytes, send.transfer.peer, receive.transfer.size_bytes),
        ExitCode::internal);
    check_alive(rank);
  }
  copy_bytes(receive.transfer.data, send.transfer.data, send.transfer.size_bytes);
  send.complete = receive.complete = true;
  box.sends.pop_front();
  box.receives.pop_front();
  return ticket;
}

bool PostOffice::poll(int rank, Ticket& ticket) {
  if (ticket == Ticket{}) return true;
  const std::lock_guard lock(mutex_);
  // What was complete when the office died is no error.
  if (!nth(tickets_, rank)[ticket].complete) {
    check_alive(rank);
    return false;
  }
  nth(tickets_, rank).remove(ticket);
  return true;
}

void PostOffice::die(std::string_view reason, ExitCode code) noexcept {
  const std::lock_guard lock(mutex_);  // nobody is in the middle of a copy
  death_.mark(reason, code);
}

void PostOffice::leave(int rank) noexcept {
  const std::lock_guard lock(mutex_);
  auto& own = nth(tickets_, rank);
  if (std::any_of(own.begin(), own.end(), [](const Waiting& one) { return !one.complete; }))
    death_.mark(fmt::format("rank {} went away with messages outstanding", rank), ExitCode::peer_lost);
}

}  // namespace lockstep::comm
