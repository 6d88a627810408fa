#include <algorithm>

#include "comm/local/hub.h"

namespace lockstep::comm {
namespace {

/// One rank's place at a hub.
class LocalCommunicator : public HostCommunicator {
 public:
  LocalCommunicator(std::shared_ptr<Hub> hub, int rank)
      : HostCommunicator(hub->name(), rank, hub->size(), hub->death()), hub_(std::move(hub)) {}
  ~LocalCommunicator() override { hub_->leave(rank()); }

  std::string_view backend() const override { return "local"; }
  bool sums_along_tree() const override { return true; }

  // What was complete when the communicator died is not an error: another rank may die on its own right
  // afterwards.
  std::unique_ptr<Communicator> split(int color, int key) override {
    check_alive();
    Hub::Seat seat;
    if (!hub_->split(rank(), color, key, seat)) check_alive();
    if (seat.hub == nullptr) return nullptr;
    return std::make_unique<LocalCommunicator>(std::move(seat.hub), seat.rank);
  }

  std::unique_ptr<Communicator> regroup(std::span<const int> members) override {
    check_alive();
    const auto place = std::ranges::find(members, rank()) - members.begin();
    return std::make_unique<LocalCommunicator>(hub_->regroup(members), static_cast<int>(place));
  }

  std::unique_ptr<MessagePort> open_port() override {
    check_alive();
    Hub::Seat seat;  // at a hub that nobody else uses
    if (!hub_->split(rank(), 0, rank(), seat)) check_alive();
    return make_local_port(seat.hub->post_office(), seat.rank);
  }

  void synchronize(device::Stream&, Deadline deadline) override {
    check_alive();
    if (!hub_->wait(rank(), deadline)) check_alive();
  }

 protected:
  void start(Operation operation) override { hub_->start(rank(), std::move(operation)); }
  int64_t outstanding() override {
    check_alive();
    const int64_t left = hub_->outstanding(rank());
    if (left > 0) check_alive();
    return left;
  }
  void die(std::string_view reason, ExitCode code) noexcept override { hub_->die(reason, code); }

 private:
  std::shared_ptr<Hub> hub_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_communicators(int size) {
  require(size >= 1, "a local communicator needs at least one rank");
  const auto hub = std::make_shared<Hub>("world", size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<LocalCommunicator>(hub, rank));
  return ranks;
}

}  // namespace lockstep::comm
