#include <array>

#include "comm/conformance.h"
#include "comm/conformance_support.h"

namespace lockstep::comm {
namespace {

void ring_passes_every_value_once_around(Communicator& world) {
  const int size = world.size(), rank = world.rank();
  if (size == 1) return;
  HostStream stream;
  int32_t held = 100 + rank;
  for (int hop = 0; hop < size; ++hop) {
    int32_t arriving = -1;
    const std::array transfers{send_to((rank + 1) % size, &held, 4),
                               receive_from((rank + size - 1) % size, &arriving, 4)};
    world.exchange(transfers, stream);
    world.synchronize(stream, patience());
    held = arriving;
    EXPECT_EQ(held, 100 + (rank + 2 * size - hop - 1) % size);
  }
}

void all_pairs_at_once(Communicator& world) {
  const int size = world.size(), rank = world.rank();
  HostStream stream;
  // Another size for each pair and direction: rank a sends a * 100 + b elements to rank b.
  std::vector<std::vector<int32_t>> out(static_cast<size_t>(size)), in(static_cast<size_t>(size));
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const auto p = static_cast<size_t>(peer);
    out[p] = elements<int32_t>(rank * 10 + peer, rank * 100 + peer);
    in[p].resize(static_cast<size_t>(peer * 100 + rank));
    transfers.push_back(send_to(peer, out[p].data(), static_cast<int64_t>(out[p].size()) * 4));
    transfers.push_back(receive_from(peer, in[p].data(), static_cast<int64_t>(in[p].size()) * 4));
  }
  world.exchange(transfers, stream);
  world.synchronize(stream, patience());
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank) {
      EXPECT_EQ(in[static_cast<size_t>(peer)], elements<int32_t>(peer * 10 + rank, peer * 100 + rank));
    }
}

void messages_of_a_pair_arrive_in_order(Communicator& world) {
  const int rank = world.rank();
  if (world.size() < 2 || rank > 1) return;
  HostStream stream;
  // Three in one exchange, three in exchanges of their own that are outstanding together.
  std::array<int32_t, 6> out{}, in{};
  for (int i = 0; i < 6; ++i) out[static_cast<size_t>(i)] = (rank + 1) * 10 + i;
  const int peer = 1 - rank;
  std::vector<Transfer> first;
  for (size_t i = 0; i < 3; ++i) first.push_back(send_to(peer, &out[i], 4));
  for (size_t i = 0; i < 3; ++i) first.push_back(receive_from(peer, &in[i], 4));
  world.exchange(first, stream);
  for (size_t i = 3; i < 6; ++i)
    world.exchange(std::array{receive_from(peer, &in[i], 4), send_to(peer, &out[i], 4)}, stream);
  world.synchronize(stream, patience());
  const int base = (peer + 1) * 10;
  EXPECT_EQ(in, (std::array<int32_t, 6>{base, base + 1, base + 2, base + 3, base + 4, base + 5}));
}

void zero_bytes_still_match(Communicator& world) {
  const int rank = world.rank();
  if (world.size() < 2 || rank > 1) return;
  HostStream stream;
  int32_t value = rank == 0 ? 41 : 0;
  // The empty message comes first: if it were skipped on one side only, the sizes of the second would not
  // match.
  if (rank == 0)
    world.exchange(std::array{send_to(1, nullptr, 0), send_to(1, &value, 4)}, stream);
  else
    world.exchange(std::array{receive_from(0, nullptr, 0), receive_from(0, &value, 4)}, stream);
  world.synchronize(stream, patience());
  EXPECT_EQ(value, 41);
}

void an_exchange_of_nothing_completes(Communicator& world) {
  HostStream stream;
  world.exchange({}, stream);
  world.synchronize(stream, patience());
  EXPECT_TRUE(world.test());
}

/// Far beyond what any library buffers: hangs where sends wait for receives that are posted later.
void large_messages_cross(Communicator& world) {
  const int rank = world.rank();
  HostStream stream;
  const int64_t count = 2'000'003;
  const int peer = rank ^ 1;
  if (peer >= world.size()) return;
  const auto out = elements<float>(rank, count);
  std::vector<float> in(static_cast<size_t>(count));
  world.exchange(std::array{send_to(peer, out.data(), count * 4), receive_from(peer, in.data(), count * 4)},
                 stream);
  world.synchronize(stream, patience());
  EXPECT_EQ(in, elements<float>(peer, count));
}

void a_receive_waits_for_its_send(Communicator& world) {
  const int rank = world.rank();
  HostStream stream;
  // Rank 1 sends the value only after rank 0 has said, by a message of its own, that it saw nothing arrive.
  const auto control = world.split(0, rank);
  if (world.size() < 2 || rank > 1) return;
  char word = 0;
  if (rank == 0) {
    int32_t value = 0;
    world.exchange(std::array{receive_from(1, &value, 4)}, stream);
    for (int poll = 0; poll < 100; ++poll) EXPECT_FALSE(world.test());
    control->exchange(std::array{send_to(1, &word, 1)}, stream);
    control->synchronize(stream, patience());
    world.synchronize(stream, patience());
    EXPECT_EQ(value, 7);
  } else {
    control->exchange(std::array{receive_from(0, &word, 1)}, stream);
    control->synchronize(stream, patience());
    int32_t value = 7;
    world.exchange(std::array{send_to(0, &value, 4)}, stream);
    world.synchronize(stream, patience());
  }
}

/// Rank 0 hands out, the others answer; each pair at its own pace.
void partners_need_not_be_in_the_same_exchange(Communicator& world) {
  const int size = world.size(), rank = world.rank();
  HostStream stream;
  if (rank > 0) {
    int32_t question = 0;
    world.exchange(std::array{receive_from(0, &question, 4)}, stream);
    world.synchronize(stream, patience());
    const int32_t answer = question * question;
    world.exchange(std::array{send_to(0, &answer, 4)}, stream);
    world.synchronize(stream, patience());
    return;
  }
  std::vector<int32_t> questions(static_cast<size_t>(size)), answers(static_cast<size_t>(size));
  std::vector<Transfer> out, in;
  for (int peer = 1; peer < size; ++peer) {
    const auto p = static_cast<size_t>(peer);
    questions[p] = peer + 2;
    out.push_back(send_to(peer, &questions[p], 4));
    in.push_back(receive_from(peer, &answers[p], 4));
  }
  world.exchange(out, stream);
  world.exchange(in, stream);
  world.synchronize(stream, patience());
  const int32_t squares[] = {0, 9, 16, 25, 36};
  for (int peer = 1; peer < size; ++peer) EXPECT_EQ(answers[static_cast<size_t>(peer)], squares[peer]);
}

constexpr ConformanceCheck kExchanges[] = {
    {"RingPassesEveryValueOnceAround", ring_passes_every_value_once_around},
    {"AllPairsAtOnce", all_pairs_at_once},
    {"MessagesOfAPairArriveInOrder", messages_of_a_pair_arrive_in_order},
    {"ZeroBytesStillMatch", zero_bytes_still_match},
    {"AnExchangeOfNothingCompletes", an_exchange_of_nothing_completes},
    {"LargeMessagesCross", large_messages_cross},
    {"AReceiveWaitsForItsSend", a_receive_waits_for_its_send},
    {"PartnersNeedNotBeInTheSameExchange", partners_need_not_be_in_the_same_exchange},
};

}  // namespace

std::span<const ConformanceCheck> exchange_checks() { return kExchanges; }

}  // namespace lockstep::comm
