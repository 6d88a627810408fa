#include "control/admission.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <functional>
#include <random>
#include <thread>

#include "control/rendezvous.h"

namespace lockstep::control {
namespace {

using namespace std::string_literals;
using std::chrono::milliseconds;
using std::chrono::seconds;

const Clock::time_point kNow{seconds(1000)};

HostAddress loopback_address() {
  HostAddress address{.interface = "lo", .loopback = true};
  address.bytes = {127, 0, 0, 1};
  address.prefix_bits = 8;
  return address;
}

/// A caller that never reads: what it is sent piles up in the system.
Descriptor call(const Endpoint& endpoint) {
  std::string error;
  Descriptor socket = begin_connecting(endpoint, error);
  pollfd polled{socket.get(), POLLOUT, 0};
  ::poll(&polled, 1, 10000);
  return socket;
}
void say(const Descriptor& socket, std::string_view bytes) {
  [[maybe_unused]] const auto sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}
/// Whether the other side has ended the connection. Waits for it.
bool dropped(const Descriptor& socket) {
  pollfd polled{socket.get(), POLLIN, 0};
  ::poll(&polled, 1, 10000);
  char byte;
  return ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) <= 0;
}

class AdmissionTest : public testing::Test {
 protected:
  AdmissionTest() {
    std::string error;
    auto listener = listen_at(loopback_address(), 0, error);
    EXPECT_TRUE(listener) << error;
    endpoint = listener->endpoint;
    std::vector<Listener> listeners;
    listeners.push_back(std::move(*listener));
    admission.emplace(std::move(listeners), token, 3, ControlTimings{});
  }
  std::string hello(int rank) const { return hello(rank, token.hello); }
  static std::string hello(int rank, const Secret& secret) {
    const auto bytes = encode_hello({secret, rank, 1});
    return {bytes.begin(), bytes.end()};
  }
  /// Serves until `enough` holds of (ranks that arrived, how many were turned away), or for ten seconds; who
  /// has arrived.
  std::vector<int> serve_until(const std::function<bool(size_t, int64_t)>& enough,
                               Clock::time_point now = kNow) {
    std::vector<int> ranks;
    const int64_t before = admission->turned_away();
    const Deadline deadline = deadline_in(seconds(10));
    for (;;) {
      for (auto& arrival : admission->serve(now)) {
        ranks.push_back(arrival.rank);
        links.push_back(std::move(arrival.connection));
      }
      if (enough(ranks.size(), admission->turned_away() - before) || Clock::now() > deadline) return ranks;
      std::vector<pollfd> polled;
      admission->add_to(polled, now);
      ::poll(polled.data(), polled.size(), 10);
    }
  }
  /// Until one more has arrived or is turned away.
  std::vector<int> answer(Clock::time_point now = kNow) {
    return serve_until(
        [](size_t ranks, int64_t turned_away) { return ranks + static_cast<size_t>(turned_away) > 0; }, now);
  }

  JobToken token = draw_token();
  Endpoint endpoint;
  std::optional<Admission> admission;
  std::vector<Connection> links;
};

TEST_F(AdmissionTest, LetsRanksInWhateverTheirOrderAndPieces) {
  const Descriptor second = call(endpoint), first = call(endpoint);
  say(second, hello(2));
  EXPECT_EQ(answer(), (std::vector{2}));
  EXPECT_EQ(admission->missing(), (std::vector{1}));
  for (const char byte : hello(1)) {
    EXPECT_TRUE(admission->serve(kNow).empty());
    say(first, {&byte, 1});
  }
  EXPECT_EQ(answer(), (std::vector{1}));
  EXPECT_TRUE(admission->missing().empty());
  std::array<char, 40> welcome{};
  EXPECT_EQ(::recv(second.get(), welcome.data(), welcome.size(), 0), 40);
  EXPECT_EQ(std::string(welcome.data() + 8, 32), encode_secret(token.answer));
}

TEST_F(AdmissionTest, TurnsAwayWhoIsNoRankOfThisJob) {
  Secret wrong = token.hello;
  wrong[31] ^= 1;
  std::string old_version = hello(1);
  old_version[8] = 2;
  for (const std::string& bytes : {hello(1, wrong), hello(0), hello(3), hello(-1), old_version,
                                   "GET / HTTP/1.1\r\n\r\n"s, "\0\0\0\0\0\0\0\0"s, "LOCKSTEX"s}) {
    const Descriptor stranger = call(endpoint);
    say(stranger, bytes);
    EXPECT_TRUE(answer().empty());
    EXPECT_TRUE(dropped(stranger)) << bytes;
  }
  EXPECT_EQ(admission->strangers(), 0U);
  EXPECT_EQ(admission->turned_away(), 8);
  EXPECT_EQ(admission->missing(), (std::vector{1, 2}));
}

TEST_F(AdmissionTest, TurnsAwayASecondOfTheSameRankUntilTheFirstIsGone) {
  const Descriptor first = call(endpoint), second = call(endpoint), third = call(endpoint);
  say(first, hello(1));
  EXPECT_EQ(answer(), (std::vector{1}));
  say(second, hello(1));
  EXPECT_TRUE(answer().empty());
  EXPECT_TRUE(dropped(second));
  admission->expect_again(1);
  say(third, hello(1));
  EXPECT_EQ(answer(), (std::vector{1}));
}

TEST_F(AdmissionTest, WaitsFiveSecondsForAHello) {
  const Descriptor slow = call(endpoint);
  say(slow, "LOCKSTEP"s);
  serve_until([&](size_t, int64_t) { return admission->strangers() == 1; });
  admission->serve(kNow + milliseconds(4999));
  EXPECT_EQ(admission->strangers(), 1U);
  admission->serve(kNow + milliseconds(5000));
  EXPECT_EQ(admission->strangers(), 0U);
  EXPECT_TRUE(dropped(slow));
}

TEST_F(AdmissionTest, EveryTruncationAndEveryFlippedBitOfAHelloStaysOutside) {
  for (size_t size = 0; size < kHelloBytes; ++size) {
    Descriptor stranger = call(endpoint);
    say(stranger, hello(1).substr(0, size));
    stranger.reset();
    EXPECT_TRUE(answer().empty()) << size;
  }
  std::vector<int> changed_rank;
  for (size_t bit = 0; bit < kHelloBytes * 8; ++bit) {
    std::string bytes = hello(1);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    const Descriptor stranger = call(endpoint);
    say(stranger, bytes);
    // Only who knows the token may err about the rank (bytes 12 to 15) and the process (16 to 23).
    const bool of_the_job = bit / 8 >= 16 && bit / 8 < 24;
    for (const int rank : answer()) {
      EXPECT_TRUE(of_the_job) << bit;
      admission->expect_again(rank);
    }
  }
  EXPECT_EQ(admission->missing(), (std::vector{1, 2}));
  EXPECT_EQ(admission->strangers(), 0U);
}

TEST_F(AdmissionTest, KeepsAtMostSixtyFourStrangersAndTheNewestOfThem) {
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(call(endpoint));
  serve_until([](size_t, int64_t turned_away) { return turned_away == 36; });
  EXPECT_EQ(admission->strangers(), 64U);
  for (int i = 0; i < 36; ++i) EXPECT_TRUE(dropped(strangers[static_cast<size_t>(i)])) << i;
  say(strangers[99], hello(2));
  say(strangers[36], hello(1));
  EXPECT_EQ(serve_until([](size_t ranks, int64_t) { return ranks == 2; }).size(), 2U);
}

TEST_F(AdmissionTest, TheOldestStrangerIsHeardBeforeItGoes) {
  std::vector<Descriptor> strangers;
  strangers.push_back(call(endpoint));
  say(strangers[0], hello(1));
  for (int i = 0; i < 100; ++i) strangers.push_back(call(endpoint));
  EXPECT_EQ(serve_until([](size_t ranks, int64_t) { return ranks == 1; }), (std::vector{1}));
}

TEST_F(AdmissionTest, WithoutDescriptorsItPausesAndGoesOn) {
  std::vector<Descriptor> callers;
  for (int i = 0; i < 10; ++i) callers.push_back(call(endpoint));
  const Descriptor next(::dup(0));  // the lowest number that is free
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{static_cast<rlim_t>(next.get()), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_TRUE(admission->serve(kNow).empty());
  std::vector<pollfd> polled;
  admission->add_to(polled, kNow);
  const size_t during = polled.size();
  polled.clear();
  admission->add_to(polled, kNow + milliseconds(100));
  const size_t after = polled.size();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(during, 0U);  // the listener would be readable all the time
  EXPECT_EQ(after, 1U);
  say(callers[9], hello(1));
  EXPECT_EQ(answer(kNow + milliseconds(100)), (std::vector{1}));
}

TEST_F(AdmissionTest, RandomBytesNeverGetIn) {
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) {
    std::string bytes(random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (i % 2 == 0) bytes = "LOCKSTEP\1\0\0\0\1\0\0\0"s + bytes;
    Descriptor stranger = call(endpoint);
    say(stranger, bytes);
    if (i % 3 == 0) stranger.reset();
    for (const auto& arrival : admission->serve(kNow)) ADD_FAILURE() << arrival.rank;
  }
  EXPECT_LE(admission->strangers(), 64U);
  EXPECT_EQ(admission->missing(), (std::vector{1, 2}));
}

TEST(Rendezvous, RankZeroMustKnowTheJobToo) {
  std::string error, failure;
  auto listener = listen_at(loopback_address(), 0, error);
  const Endpoint endpoint = listener->endpoint;
  const JobToken token = draw_token();
  // Knows the ranks' half of the token only, as who has seen a hello would.
  JobToken impostor = draw_token();
  impostor.hello = token.hello;
  std::vector<Listener> listeners;
  listeners.push_back(std::move(*listener));
  std::thread root([&] { await_ranks(std::move(listeners), impostor, 3, {}, deadline_in(seconds(30))); });
  const Connection link = call_root({endpoint}, token, 1, 1, {}, deadline_in(milliseconds(200)), failure);
  EXPECT_FALSE(link.open());
  EXPECT_NE(failure.find("connected, but this job's rank 0 did not answer"), std::string::npos) << failure;
  const Connection first = call_root({endpoint}, impostor, 1, 1, {}, deadline_in(seconds(30)), failure);
  EXPECT_TRUE(first.open());  // though another came as rank 1 before, and has gone
  const Connection second = call_root({endpoint}, impostor, 2, 1, {}, deadline_in(seconds(30)), failure);
  EXPECT_TRUE(second.open());
  root.join();
}

TEST(Rendezvous, SaysWhatEachAddressAnswered) {
  std::string error, failure;
  auto listener = listen_at(loopback_address(), 0, error);
  const Endpoint closed = listener->endpoint;
  listener.reset();
  EXPECT_FALSE(call_root({closed}, draw_token(), 1, 1, {}, deadline_in(milliseconds(100)), failure).open());
  EXPECT_EQ(failure, endpoint_text(closed) + ": Connection refused");
}

TEST(Rendezvous, NoNumberOfSilentAddressesDelaysTheGoodOne) {
  std::string error, failure;
  std::vector<Listener> mute, listeners;
  std::vector<Endpoint> endpoints;
  // Each takes a connection and never answers; with the one that fills it, its queue drops what comes later.
  std::vector<Descriptor> fillers;
  for (int i = 0; i < 20; ++i) {
    mute.push_back(*listen_at(loopback_address(), 0, error));
    endpoints.push_back(mute.back().endpoint);
    if (i % 2 == 0) continue;
    ASSERT_EQ(::listen(mute.back().socket.get(), 0), 0);
    fillers.push_back(call(endpoints.back()));
  }
  listeners.push_back(*listen_at(loopback_address(), 0, error));
  endpoints.push_back(listeners.back().endpoint);
  const JobToken token = draw_token();
  ControlTimings timings;
  timings.answer = std::chrono::hours(1);
  std::thread root([&, held = std::move(listeners)]() mutable {
    await_ranks(std::move(held), token, 2, timings, deadline_in(seconds(30)));
  });
  EXPECT_TRUE(call_root(endpoints, token, 1, 1, timings, deadline_in(seconds(30)), failure).open())
      << failure;
  root.join();
}

TEST(Rendezvous, SeveralGoodAddressesLeadToOneLink) {
  std::string error, failure;
  std::vector<Listener> listeners;
  std::vector<Endpoint> endpoints;
  for (int i = 0; i < 4; ++i) {
    listeners.push_back(*listen_at(loopback_address(), 0, error));
    endpoints.push_back(listeners.back().endpoint);
  }
  const JobToken token = draw_token();
  std::vector<Connection> links;
  std::thread root([&, held = std::move(listeners)]() mutable {
    links = await_ranks(std::move(held), token, 2, {}, deadline_in(seconds(30)));
  });
  Connection link = call_root(endpoints, token, 1, 1, {}, deadline_in(seconds(30)), failure);
  root.join();
  ASSERT_TRUE(link.open() && links.at(1).open()) << failure;
  links[1].send(FrameType::farewell, "over it");
  links[1].flush();
  pollfd polled{link.descriptor(), POLLIN, 0};
  ASSERT_EQ(::poll(&polled, 1, 10000), 1);
  EXPECT_TRUE(link.receive());
  const auto frame = link.next();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->payload, "over it");
}

TEST(Rendezvous, APortThatIsTakenIsSaid) {
  std::string error;
  const auto listener = listen_at(loopback_address(), 0, error);
  EXPECT_FALSE(listen_at(loopback_address(), listener->endpoint.port, error));
  EXPECT_EQ(error, "Address already in use");
}

}  // namespace
}  // namespace lockstep::control
