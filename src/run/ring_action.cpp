#include "run/ring_action.h"

#include <optional>
#include <utility>
#include <vector>

namespace lockstep::run {
namespace {

class Ring {
 public:
  Ring(const RingCall& call, std::shared_ptr<StepKernels> kernels)
      : communicator_(call.communicator), dtype_(call.dtype), kernels_(std::move(kernels)) {
    const int rank = communicator_->rank(), ranks = communicator_->size();
    for (int number = 0; number + 1 < ranks; ++number) {
      const program::RingRound blocks = program::ring_round(call.pass, rank, ranks, number);
      Round round;
      for (const auto& span : block_of(call.blocks, blocks.send, ranks))
        round.transfers.push_back(
            {comm::Transfer::Direction::send, (rank + 1) % ranks, call.data + span.begin, span.size()});
      std::byte* scratch = call.scratch;
      for (const auto& span : block_of(call.blocks, blocks.receive, ranks)) {
        std::byte* to = call.data + span.begin;
        if (call.pass == program::RingPass::reduce_scatter) {
          round.sums.push_back({to, scratch, span.size() / size_of(dtype_)});
          to = scratch;
          scratch += span.size();
        }
        round.transfers.push_back(
            {comm::Transfer::Direction::receive, (rank + ranks - 1) % ranks, to, span.size()});
      }
      if (!round.transfers.empty()) rounds_.push_back(std::move(round));
    }
  }

  comm::Ticket begin(device::Stream& stream) {
    next_ = 0;
    return start_next(stream).value_or(comm::Ticket{});
  }

  std::optional<comm::Ticket> proceed(device::Stream& stream) {
    if (next_ > 0)
      for (const Sum& sum : rounds_[next_ - 1].sums)
        kernels_->add(sum.to, sum.from, dtype_, sum.count, stream);
    return start_next(stream);
  }

 private:
  struct Sum {
    std::byte *to, *from;
    int64_t count;
  };
  struct Round {
    std::vector<comm::Transfer> transfers;
    std::vector<Sum> sums;
  };

  std::optional<comm::Ticket> start_next(device::Stream& stream) {
    if (next_ == rounds_.size()) return std::nullopt;
    return communicator_->exchange(rounds_[next_++].transfers, stream);
  }

  comm::Communicator* communicator_;
  DType dtype_;
  std::shared_ptr<StepKernels> kernels_;
  std::vector<Round> rounds_;
  size_t next_ = 0;
};

}  // namespace

Action make_ring_action(const RingCall& call, std::shared_ptr<StepKernels> kernels) {
  auto ring = std::make_shared<Ring>(call, std::move(kernels));
  return {.communicate = [ring](device::Stream& stream, const StepInputs&) { return ring->begin(stream); },
          .proceed = [ring](device::Stream& stream) { return ring->proceed(stream); },
          .communicator = call.communicator};
}

}  // namespace lockstep::run
