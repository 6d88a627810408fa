#include <cstring>
#include <optional>

#include "comm/halves.h"
#include "comm/stream_communicator.h"
#include "device/emulated/emulated_device.h"

namespace lockstep::comm {
namespace {

/// The way to the other ranks. Work that a stream still holds refers to it when the communicator is gone.
struct Channel {
  Channel(std::unique_ptr<Communicator> communicator, std::shared_ptr<Death> shared)
      : host(std::move(communicator)), death(std::move(shared)) {}

  std::unique_ptr<Communicator> host;
  std::shared_ptr<Death> death;
  std::unique_ptr<device::Device> device = device::make_cpu_device();
  std::unique_ptr<device::Stream> stream =
      device->create_stream("host");  // host communicators do not touch it
};

/// One operation as a stream's work. Data travels from host memory to host memory: the device's can be
/// touched only while this rank's device works, and other ranks come when they come.
class Work {
 public:
  Work(Operation operation, int rank, int size)
      : operation_(std::move(operation)), rank_(rank), size_(size) {}

  /// Called again and again by the device until it returns true. Throws CommError if the operation fails.
  bool poll(Channel& channel) {
    if (channel.death->marked()) return true;  // as kernels do that are aborted
    if (!ticket_) ticket_ = start(channel);
    if (!channel.host->poll(*ticket_)) return false;
    finish();
    return true;
  }

 private:
  bool has_blocks() const {
    return operation_.kind == OperationKind::reduce_scatter || operation_.kind == OperationKind::all_gather;
  }

  Ticket start(Channel& channel) {
    const auto bytes = static_cast<size_t>(operation_.block_bytes() * (has_blocks() ? size_ : 1));
    staged_.resize(bytes);
    if (bytes > 0) std::memcpy(staged_.data(), operation_.data, bytes);
    DType dtype = operation_.dtype;
    if (is_half(dtype)) {
      staged_ = widened(staged_.data(), static_cast<int64_t>(bytes), dtype);
      dtype = DType::float32;
    }
    const int64_t count = operation_.count;
    Communicator& host = *channel.host;
    switch (operation_.kind) {
      case OperationKind::all_reduce:
        return host.all_reduce(staged_.data(), count, dtype, operation_.reduce_op, *channel.stream);
      case OperationKind::reduce_scatter:
        return host.reduce_scatter(staged_.data(), count, dtype, operation_.reduce_op, *channel.stream);
      case OperationKind::all_gather:
        return host.all_gather(staged_.data(), count, *channel.stream);
      case OperationKind::broadcast:
        return host.broadcast(staged_.data(), count, operation_.root, *channel.stream);
      case OperationKind::exchange:
        return start_exchange(channel);
      case OperationKind::barrier:
      case OperationKind::split:
        return host.barrier(*channel.stream);
    }
    throw InternalError("an operation of no kind");
  }

  Ticket start_exchange(Channel& channel) {
    std::vector<Transfer> transfers = operation_.transfers;
    messages_.resize(transfers.size());
    for (size_t i = 0; i < transfers.size(); ++i) {
      const auto size = static_cast<size_t>(transfers[i].size_bytes);
      messages_[i].resize(size);
      if (transfers[i].direction == Transfer::Direction::send && size > 0)
        std::memcpy(messages_[i].data(), transfers[i].data, size);
      transfers[i].data = messages_[i].data();
    }
    return channel.host->exchange(transfers, *channel.stream);
  }

  void finish() {
    for (size_t i = 0; i < messages_.size(); ++i) {
      const Transfer& transfer = operation_.transfers[i];
      if (transfer.direction == Transfer::Direction::receive && transfer.size_bytes > 0)
        std::memcpy(transfer.data, messages_[i].data(), messages_[i].size());
    }
    if (is_half(operation_.dtype)) {
      std::vector<std::byte> halves(staged_.size() / 2);
      narrow(staged_, halves.data(), operation_.dtype);
      staged_ = std::move(halves);
    }
    // Of a reduction's blocks only the own one is specified.
    const bool own_block = operation_.kind == OperationKind::reduce_scatter;
    const auto first = static_cast<size_t>(own_block ? operation_.block_bytes() * rank_ : 0);
    const size_t bytes = own_block ? static_cast<size_t>(operation_.block_bytes()) : staged_.size();
    if (bytes > 0)
      std::memcpy(static_cast<std::byte*>(operation_.data) + first, staged_.data() + first, bytes);
  }

  Operation operation_;
  int rank_, size_;
  std::optional<Ticket> ticket_;  // once started
  std::vector<std::byte> staged_;
  std::vector<std::vector<std::byte>> messages_;  // by transfer
};

/// Ranks with an emulated GPU each. An operation starts when its stream comes to it. One that fails makes its
/// stream fail.
class EmulatedCommunicator : public StreamCommunicator {
 public:
  /// `host` is this communicator's alone.
  EmulatedCommunicator(std::unique_ptr<Communicator> host, device::EmulatedDevice& device, std::string name,
                       const std::shared_ptr<Death>& death = std::make_shared<Death>())
      : StreamCommunicator(std::move(name), host->rank(), host->size(), death, device),
        emulated_(device),
        channel_(std::make_shared<Channel>(host->split(0, host->rank()), death)),
        control_(std::move(host)) {}

  ~EmulatedCommunicator() override {
    if (!idle()) die("went away with operations outstanding", ExitCode::peer_lost);
  }

  std::string_view backend() const override { return "emulated"; }

  std::unique_ptr<Communicator> split(int color, int key) override {
    check_alive();
    try {
      auto host = control_->split(color, key);
      if (host == nullptr) return nullptr;
      return std::make_unique<EmulatedCommunicator>(std::move(host), emulated_,
                                                    name() + "/" + std::to_string(color));
    } catch (const CommError& error) {
      fail(error.what(), error.code());
    }
  }

  void check_health() override { check_alive(); }

 protected:
  void issue(const Operation& operation, device::Stream& stream) override {
    dynamic_cast<device::EmulatedStream&>(stream).launch_polled(
        [channel = channel_, work = std::make_shared<Work>(operation, rank(), size())] {
          try {
            return work->poll(*channel);
          } catch (const CommError& error) {
            channel->death->mark(error.what(), error.code());
            throw;
          }
        });
  }

  void advance() override {
    emulated_.run_for_a_moment([&] { return idle(); });
  }

  void die(std::string_view reason, ExitCode code) noexcept override {
    StreamCommunicator::die(reason, code);
    channel_->host->abort(reason);
    control_->abort(reason);
  }

 private:
  device::EmulatedDevice& emulated_;
  std::shared_ptr<Channel> channel_;
  std::unique_ptr<Communicator> control_;  // for split(), if data may be under way
};

}  // namespace

std::unique_ptr<Communicator> make_gpu_communicator(Communicator& bootstrap, device::Device& device,
                                                    const GpuCommunicatorOptions&) {
  return std::make_unique<EmulatedCommunicator>(bootstrap.split(0, bootstrap.rank()),
                                                dynamic_cast<device::EmulatedDevice&>(device), "world");
}

std::string gpu_communication_library() { return "emulated"; }

}  // namespace lockstep::comm
