#include <array>
#include <thread>

#include "comm/conformance.h"
#include "comm/conformance_support.h"

namespace lockstep::comm {
namespace {

/// Null on backends that have none, which say so.
std::unique_ptr<MessagePort> port_of(Communicator& world) {
  for (const std::string_view backend : {"mpi", "local", "solo"})
    if (world.backend() == backend) return world.open_port();
  EXPECT_THROW(world.open_port(), InternalError);
  return nullptr;
}

void wait_for(MessagePort& port, Ticket& transfer) {
  const Deadline deadline = patience();
  while (!port.poll(transfer)) {
    if (Clock::now() > deadline) throw CommError("a message has not come");
    std::this_thread::yield();
  }
  EXPECT_EQ(transfer, Ticket{});
}

void messages_are_complete_in_the_order_of_whoever_comes(Communicator& world) {
  const auto port = port_of(world);
  if (port == nullptr || world.size() < 3) return;
  HostStream stream;
  if (world.rank() == 0) {
    std::array<int32_t, 2> in{};
    Ticket first = port->start(receive_from(1, &in[0], 4)), second = port->start(receive_from(2, &in[1], 4));
    wait_for(*port, second);
    EXPECT_EQ(in[1], 22);
    EXPECT_FALSE(port->poll(first)) << "rank 1 waits until it is told";
    int32_t word = 5;
    Ticket told = port->start(send_to(1, &word, 4));
    wait_for(*port, first);
    wait_for(*port, told);
    EXPECT_EQ(in[0], 11);
    EXPECT_EQ(port->transferred(), (TransferredBytes{.sent = 4, .received = 8}));
  } else if (world.rank() == 1) {
    int32_t word = 0, value = 11;
    Ticket told = port->start(receive_from(0, &word, 4));
    wait_for(*port, told);
    Ticket sent = port->start(send_to(0, &value, 4));
    wait_for(*port, sent);
  } else if (world.rank() == 2) {
    int32_t value = 22;
    Ticket sent = port->start(send_to(0, &value, 4));
    wait_for(*port, sent);
  }
  world.barrier(stream);
  world.synchronize(stream, patience());
}

void messages_of_one_pair_and_direction_keep_their_order(Communicator& world) {
  const auto port = port_of(world);
  if (port == nullptr) return;
  const int rank = world.rank(), next = (rank + 1) % world.size(),
            before = (rank + world.size() - 1) % world.size();
  // Of other sizes each, the largest beyond what libraries send ahead; a rank alone sends to itself.
  std::array<std::vector<int32_t>, 4> out, in;
  std::array<Ticket, 8> tickets;
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t count = std::array{1, 100'000, 0, 7}[i];
    out[i] = elements<int32_t>(10 * rank + static_cast<int>(i), count);
    in[i].resize(out[i].size());
    tickets[i] = port->start(send_to(next, out[i].data(), 4 * count));
  }
  for (size_t i = 0; i < in.size(); ++i)
    tickets[4 + i] = port->start(receive_from(before, in[i].data(), static_cast<int64_t>(4 * in[i].size())));
  for (auto ticket = tickets.rbegin(); ticket != tickets.rend(); ++ticket) wait_for(*port, *ticket);
  for (size_t i = 0; i < in.size(); ++i)
    EXPECT_EQ(in[i],
              elements<int32_t>(10 * before + static_cast<int>(i), static_cast<int64_t>(in[i].size())));
}

void ports_of_one_group_do_not_mix(Communicator& world) {
  const auto one = port_of(world);
  if (one == nullptr) return;
  const auto other = world.open_port();
  const int self = world.rank();
  int32_t first = 1, second = 2, to_one = 0, to_other = 0;
  std::array tickets{other->start(send_to(self, &second, 4)), one->start(send_to(self, &first, 4)),
                     one->start(receive_from(self, &to_one, 4)),
                     other->start(receive_from(self, &to_other, 4))};
  wait_for(*other, tickets[0]);
  wait_for(*one, tickets[1]);
  wait_for(*one, tickets[2]);
  wait_for(*other, tickets[3]);
  EXPECT_EQ(to_one, 1);
  EXPECT_EQ(to_other, 2);
}

void a_message_of_another_size_is_an_error(Communicator& world) {
  const auto port = port_of(world);
  // MPI cannot tell of what a rank sends to itself.
  if (port == nullptr || (world.size() == 1 && world.backend() == "mpi")) return;
  auto* const out = immortal<int32_t>(4);
  auto* const in = immortal<int32_t>(4);
  const int next = (world.rank() + 1) % world.size(),
            before = (world.rank() + world.size() - 1) % world.size();
  try {
    Ticket receive = port->start(receive_from(before, in, 4));
    port->start(send_to(next, out, 8));
    wait_for(*port, receive);
    ADD_FAILURE() << "8 bytes were taken for 4";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("which expects 4 bytes"), std::string::npos) << error.what();
  }
  EXPECT_THROW(port->start(receive_from(before, in, 4)), CommError) << "a dead port stays so";
}

constexpr ConformanceCheck kPorts[] = {
    {"MessagesAreCompleteInTheOrderOfWhoeverComes", messages_are_complete_in_the_order_of_whoever_comes},
    {"MessagesOfOnePairAndDirectionKeepTheirOrder", messages_of_one_pair_and_direction_keep_their_order},
    {"PortsOfOneGroupDoNotMix", ports_of_one_group_do_not_mix},
    {"AMessageOfAnotherSizeIsAnError", a_message_of_another_size_is_an_error},
};

}  // namespace

std::span<const ConformanceCheck> port_checks() { return kPorts; }

}  // namespace lockstep::comm
