// What strangers do to rank 0's port while a rank of the job is still missing.
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>

#include "comm/conformance_support.h"
#include "control/control_protocol.h"
#include "control/endpoint.h"
#include "control/meeting_of.h"
#include "control/start.h"

namespace lockstep::control {
namespace {

using namespace std::string_literals;

constexpr int kConnections = 20000;

Endpoint loopback_endpoint(const std::string& text) {
  HostAddress address{.interface = "lo", .loopback = true};
  address.bytes = {127, 0, 0, 1};
  return {address, static_cast<uint16_t>(std::stoi(text.substr(text.find(':') + 1)))};
}

/// What one of them says: nothing, parts of a hello, hellos of others, garbage, and too much of everything.
std::string hostile_bytes(int kind, std::mt19937& random) {
  const auto bytes = encode_hello({draw_token().hello, 2, 1});
  const std::string hello(bytes.begin(), bytes.end());
  std::string garbage(1 + random() % 300, '\0');
  for (char& byte : garbage) byte = static_cast<char>(random());
  switch (kind % 7) {
    case 0:
      return "";
    case 1:
      return hello.substr(0, random() % kHelloBytes);
    case 2:
      return hello;
    case 3:
      return garbage;
    case 4:
      return hello.substr(0, 24) + garbage;
    case 5:
      return "\xff\xff\xff\x7f\4\0\0\0"s;
    default:
      return hello + encode_frame(FrameType::decision, encode_decision({Fault::lost, 0, 200, "x", ""}));
  }
}

void attack(const Endpoint& endpoint) {
  std::mt19937 random(4);
  std::vector<Descriptor> held;  // slow ones, which stay
  for (int i = 0; i < kConnections; ++i) {
    std::string error;
    Descriptor socket = begin_connecting(endpoint, error);
    ASSERT_TRUE(socket.valid()) << error;
    pollfd polled{socket.get(), POLLOUT, 0};
    ASSERT_EQ(::poll(&polled, 1, 30000), 1) << i;
    const std::string bytes = hostile_bytes(i, random);
    [[maybe_unused]] const auto sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (i % 2 == 0) {
      const linger reset{1, 0};
      ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    }
    if (i % 100 == 0) held.push_back(std::move(socket));
  }
}

TEST(ControlPlaneUnderAttack, StartsAndRunsAsIfNothingHadHappened) {
  testing::internal::CaptureStderr();
  auto worlds = comm::make_local_communicators(3);
  std::atomic<int> talked = 0, ended = 0;
  std::vector<std::thread> threads;
  for (auto& world : worlds)
    threads.emplace_back([&] {
      ControlPlaneOptions options{
          .host = "a", .interface = "", .termination_requested = {}, .end_process = {}};
      options.end_process = [&](int) { ++ended; };
      // The last rank comes when the attack is over; all the time before, the port is open.
      if (world->rank() == 2)
        options.before_connect = [](const std::string& addresses) { attack(loopback_endpoint(addresses)); };
      ControlTimings timings;
      timings.connect = timings.collective = std::chrono::minutes(4);
      const auto plane = start_control_plane(meeting_of(*world), options, timings);
      if (world->rank() != 0) {
        plane->mailbox().send(0, "hello", std::to_string(world->rank()));
        EXPECT_TRUE(plane->mailbox().receive("answer", comm::patience()));
      } else {
        for (int i = 0; i < 2; ++i) {
          const auto message = plane->mailbox().receive("hello", comm::patience());
          ASSERT_TRUE(message);
          EXPECT_EQ(message->text, std::to_string(message->from));
        }
        for (const int rank : {1, 2}) plane->mailbox().send(rank, "answer", "");
      }
      ++talked;
      comm::HostStream stream;
      world->barrier(stream);
      world->synchronize(stream, comm::patience());
      plane->leave();
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(talked, 3);
  EXPECT_EQ(ended, 0);
}

TEST(ControlPlaneUnderAttack, TheDoorIsClosedOnceAllAreThere) {
  auto worlds = comm::make_local_communicators(2);
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (auto& world : worlds)
    threads.emplace_back([&] {
      std::string address;
      ControlPlaneOptions options{
          .host = "a", .interface = "", .termination_requested = {}, .end_process = [](int) {}};
      options.before_connect = [&](const std::string& addresses) { address = addresses; };
      const auto plane = start_control_plane(meeting_of(*world), options);
      if (world->rank() == 1) {
        std::string error;
        Descriptor socket = begin_connecting(loopback_endpoint(address), error);
        pollfd polled{socket.get(), POLLOUT, 0};
        ::poll(&polled, 1, 10000);
        int status = 0;
        socklen_t size = sizeof(status);
        ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &status, &size);
        if (!socket.valid() || status == ECONNREFUSED) ++refused;
      }
      comm::HostStream stream;
      world->barrier(stream);
      world->synchronize(stream, comm::patience());
      plane->leave();
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(refused, 1);
}

}  // namespace
}  // namespace lockstep::control
