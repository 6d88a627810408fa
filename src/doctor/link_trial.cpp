#include "doctor/link_trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "base/index.h"
#include "base/statistics.h"
#include "doctor/network.h"
#include "lockstep/error.h"
#include "observe/network_counters.h"

namespace lockstep::doctor {
namespace {

constexpr std::chrono::seconds kPatience{60};  // a slow link, and a peer that is busy with another one
constexpr int kWarmUps = 5, kMessages = 30;
constexpr size_t kPieceBytes = size_t{2} << 20;
constexpr double kTrialSeconds = 0.25;
constexpr int kMostPieces = 256;

/// Messages between this rank and one peer.
class Wire {
 public:
  Wire(comm::Communicator& links, const Ranks& ranks, int peer)
      : links_(links), ranks_(ranks), peer_(peer), stream_(device_->create_stream("link trial")) {}

  void send(void* data, size_t size_bytes) { transfer(comm::Transfer::Direction::send, data, size_bytes); }
  void receive(void* data, size_t size_bytes) {
    transfer(comm::Transfer::Direction::receive, data, size_bytes);
  }

 private:
  void transfer(comm::Transfer::Direction direction, void* data, size_t size_bytes) {
    const comm::Transfer transfer{direction, peer_, data, static_cast<int64_t>(size_bytes)};
    try {
      links_.exchange(std::span(&transfer, 1), *stream_);
      links_.synchronize(*stream_, deadline_in(kPatience));
    } catch (const CommError& error) {
      const int own = links_.rank();
      throw DeviceError(fmt::format(
          "rank {} on {} and rank {} on {} exchanged no message within {} s: allow connections on any port "
          "of the network that they share, and name its interface: launcher/lockstep-run --interface NAME "
          "({})",
          own, nth(ranks_, own).host, peer_, nth(ranks_, peer_).host, kPatience.count(), error.what()));
    }
  }

  comm::Communicator& links_;
  const Ranks& ranks_;
  int peer_;
  std::unique_ptr<device::Device> device_ = device::make_cpu_device();
  std::unique_ptr<device::Stream> stream_;
};

double seconds_since(Clock::time_point start) { return milliseconds_between(start, Clock::now()) / 1000; }

double try_latency(Wire& wire, bool leads) {
  std::vector<double> halves;
  for (int message = 0; message < kWarmUps + kMessages; ++message) {
    char byte = 'x';
    const auto start = Clock::now();
    if (leads) wire.send(&byte, 1);
    wire.receive(&byte, 1);
    if (!leads) wire.send(&byte, 1);
    if (message >= kWarmUps) halves.push_back(seconds_since(start) / 2);
  }
  return median(halves);
}

/// The interface that has sent most since `before`, if it has sent about as much as was sent by the trial.
std::string interface_of(const observe::NetworkBytes& before, double sent_bytes) {
  std::string most;
  double bytes = sent_bytes / 2;
  for (const auto& [name, moved] : observe::per_step(before, observe::network_bytes(), 1))
    if (moved.sent > bytes) {
      most = name;
      bytes = moved.sent;
    }
  return most;
}

/// The sender finds out how many pieces take long enough, says so, and sends them.
void send_pieces(Wire& wire, LinkFacts& link) {
  std::vector<char> piece(kPieceBytes, 'x');
  char answer = 0;
  const auto before = observe::network_bytes();
  const auto run = [&](int pieces) {
    const auto start = Clock::now();
    for (int i = 0; i < pieces; ++i) wire.send(piece.data(), piece.size());
    wire.receive(&answer, 1);
    return seconds_since(start);
  };
  run(1);
  int pieces = std::clamp(static_cast<int>(kTrialSeconds / std::max(run(1), 1e-9)), 1, kMostPieces);
  wire.send(&pieces, sizeof(pieces));
  const double seconds = run(pieces);
  link.bytes_per_second = static_cast<double>(kPieceBytes) * pieces / seconds;
  link.interface = interface_of(before, static_cast<double>(kPieceBytes) * (pieces + 2));
  if (!link.interface.empty()) link.speed_mbit = interface_speed_mbit(link.interface);
}

void receive_pieces(Wire& wire) {
  std::vector<char> piece(kPieceBytes);
  char answer = 'x';
  const auto run = [&](int pieces) {
    for (int i = 0; i < pieces; ++i) wire.receive(piece.data(), piece.size());
    wire.send(&answer, 1);
  };
  run(1);
  run(1);
  int pieces = 0;
  wire.receive(&pieces, sizeof(pieces));
  run(pieces);
}

/// Both directions between this rank and `peer`, one after the other.
LinkFacts try_link(comm::Communicator& links, const Ranks& ranks, int peer) {
  Wire wire(links, ranks, peer);
  LinkFacts link{.from = links.rank(), .to = peer};
  const bool leads = link.from < peer;
  if (!leads) receive_pieces(wire);
  send_pieces(wire, link);
  if (leads) receive_pieces(wire);
  return link;
}

}  // namespace

int rounds_of(int count) { return count % 2 == 0 ? count - 1 : count; }

int opponent(int member, int count, int round) {
  // The circle method: one member stays, the others move on by one place each round. Of an odd number the one
  // that stays is nobody.
  const int even = count + count % 2, moving = even - 1;
  const auto met = [&] {
    if (member == even - 1) return round;
    const int other = ((2 * round - member) % moving + moving) % moving;
    return other == member ? even - 1 : other;
  }();
  return met < count ? met : -1;
}

std::vector<Latency> try_pairs(comm::Communicator& links, const Ranks& ranks) {
  std::vector<Latency> measured;
  const int own = links.rank();
  for (int round = 0; links.size() > 1 && round < rounds_of(links.size()); ++round) {
    const int peer = opponent(own, links.size(), round);
    if (peer < 0) continue;
    Wire wire(links, ranks, peer);
    const double seconds = try_latency(wire, own < peer);
    if (own < peer) measured.push_back({own, peer, seconds});
  }
  return measured;
}

std::vector<LinkFacts> try_links(comm::Communicator& links, const Ranks& ranks) {
  std::map<int, std::vector<int>> by_host;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    by_host[ranks[rank].host_number].push_back(static_cast<int>(rank));
  std::vector<int> firsts;
  for (const auto& [number, own] : by_host) firsts.push_back(own.front());
  std::vector<LinkFacts> measured;
  const auto& here = by_host[nth(ranks, links.rank()).host_number];
  if (here.size() > 1 && links.rank() == here[0]) measured.push_back(try_link(links, ranks, here[1]));
  if (here.size() > 1 && links.rank() == here[1]) measured.push_back(try_link(links, ranks, here[0]));
  const auto place = std::ranges::find(firsts, links.rank());
  if (place == firsts.end()) return measured;
  const int host = static_cast<int>(place - firsts.begin()), hosts = static_cast<int>(firsts.size());
  for (int round = 0; hosts > 1 && round < rounds_of(hosts); ++round)
    if (const int other = opponent(host, hosts, round); other >= 0)
      measured.push_back(try_link(links, ranks, nth(firsts, other)));
  return measured;
}

}  // namespace lockstep::doctor
