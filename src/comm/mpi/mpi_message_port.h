#pragma once

#include <mpi.h>

#include <string>

#include "comm/checked_communicator.h"
#include "comm/message_port.h"
#include "comm/mpi/mpi_messages.h"

namespace lockstep::comm {

/// Messages of MPI over a communicator of its own, which it owns.
class MpiMessagePort : public MessagePort {
 public:
  MpiMessagePort(MPI_Comm comm, std::string name, MessageRules rules);
  ~MpiMessagePort() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Ticket start(const Transfer& transfer) override;
  bool poll(Ticket& ticket) override;
  void progress() override;
  TransferredBytes transferred() const override { return transferred_; }
  void abort(std::string_view reason) noexcept override { death_.mark(reason, ExitCode::peer_lost); }

 private:
  struct Pending {
    Transfer transfer{};
    MpiRequests requests;
  };

  std::string who() const;

  MPI_Comm comm_;
  std::string name_;
  MessageRules rules_;
  int rank_ = 0, size_ = 0;
  Tickets<Pending> pending_;
  TransferredBytes transferred_;
  Death death_;
};

}  // namespace lockstep::comm
