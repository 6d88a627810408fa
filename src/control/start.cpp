#include "control/start.h"

#include <fmt/format.h>
#include <unistd.h>

#include <set>

#include "base/ensure.h"
#include "base/index.h"
#include "base/text.h"
#include "control/addresses.h"
#include "control/byte_codec.h"
#include "control/failure_report.h"
#include "control/rendezvous.h"
#include "control/watchdog.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;

/// Rank 0 listens a little longer than the others try.
constexpr milliseconds kMargin{2000};
constexpr size_t kMostFailuresShown = 3;

std::vector<std::string> exchange(const Meeting& meeting, const std::string& own, milliseconds timeout) {
  auto texts = meeting.exchange(own, timeout);
  ensure(static_cast<int>(texts.size()) == meeting.size, "every rank's text arrives");
  return texts;
}

/// What rank 0 tells all: where it listens, and the token; or why it does not listen.
struct Invitation {
  std::string refusal;
  ExitCode refusal_code = ExitCode::done;
  JobToken token;
  std::vector<Endpoint> endpoints;
};

std::string encode(const Invitation& invitation) {
  ByteWriter writer;
  RankPlace addresses;
  writer.text(invitation.refusal)
      .number(static_cast<int32_t>(invitation.refusal_code))
      .raw(encode_secret(invitation.token.hello))
      .raw(encode_secret(invitation.token.answer));
  for (const auto& endpoint : invitation.endpoints) {
    addresses.addresses.push_back(endpoint.address);
    writer.number(endpoint.port);
  }
  return ByteWriter().text(encode_place(addresses)).raw(writer.take()).take();
}

Invitation decode(const std::string& bytes) {
  ByteReader reader(bytes);
  const auto addresses = decode_place(reader.text());
  Invitation invitation;
  invitation.refusal = reader.text();
  invitation.refusal_code = static_cast<ExitCode>(reader.number<int32_t>());
  const auto hello = decode_secret(reader.raw(sizeof(Secret))),
             answer = decode_secret(reader.raw(sizeof(Secret)));
  ensure(addresses && hello && answer, "rank 0's invitation to the control plane is damaged");
  invitation.token = {*hello, *answer};
  for (const auto& address : addresses->addresses)
    invitation.endpoints.push_back({address, reader.number<uint16_t>()});
  ensure(reader.finished(), "rank 0's invitation to the control plane is damaged");
  return invitation;
}

std::string addresses_of(const RankPlace& place) {
  std::vector<std::string> texts;
  for (const auto& address : place.addresses)
    texts.push_back(fmt::format("{} {}", address.interface, address_text(address)));
  return texts.empty() ? "none" : join(texts, ", ");
}

std::vector<Listener> listen(const std::vector<RankPlace>& places, const ControlPlaneOptions& options,
                             std::string& refusal) {
  const auto chosen = choose_addresses(places, options.interface);
  if (chosen.empty()) {
    refusal =
        options.interface.empty()
            ? fmt::format("host {} has no address at which the other hosts could reach it", places[0].host)
            : fmt::format("host {} has no interface or address '{}'", places[0].host, options.interface);
    refusal +=
        fmt::format(" (it has {}); set LOCKSTEP_CONTROL_INTERFACE to one of these", addresses_of(places[0]));
    return {};
  }
  std::vector<Listener> listeners;
  std::vector<std::string> failures;
  for (const auto& address : chosen) {
    std::string error;
    // The same port everywhere if it is free: one rule for a firewall.
    const int wanted =
        options.port != 0 || listeners.empty() ? options.port : listeners.front().endpoint.port;
    auto listener = listen_at(address, wanted, error);
    if (!listener && options.port == 0) listener = listen_at(address, 0, error);
    if (listener) {
      listeners.push_back(std::move(*listener));
    } else {
      failures.push_back(
          fmt::format("{}: {}", endpoint_text({address, static_cast<uint16_t>(wanted)}), error));
    }
  }
  if (listeners.empty())
    refusal = fmt::format(
        "host {} cannot listen on any of its addresses ({}); set LOCKSTEP_CONTROL_PORT to another port, or "
        "LOCKSTEP_CONTROL_INTERFACE to another interface (it has {})",
        places[0].host, join(failures, "; "), addresses_of(places[0]));
  return listeners;
}

std::vector<RankPlace> exchange_places(const Meeting& meeting, const std::string& host,
                                       milliseconds timeout) {
  std::vector<RankPlace> places;
  for (const auto& text :
       exchange(meeting, encode_place({host, own_machine(host), ::getpid(), own_addresses()}), timeout)) {
    auto place = decode_place(text);
    ensure(place.has_value(), "a rank's addresses arrived damaged");
    places.push_back(std::move(*place));
  }
  return places;
}

/// This rank's links to the others; `failure` says if one is missing.
std::vector<Connection> connect(int rank, const std::vector<RankPlace>& places,
                                std::vector<Listener> listeners, const Invitation& invitation,
                                const ControlPlaneOptions& options, const ControlTimings& timings,
                                std::string& failure) {
  if (rank == 0) {
    auto links = await_ranks(std::move(listeners), invitation.token, static_cast<int>(places.size()), timings,
                             deadline_in(timings.connect + kMargin));
    std::vector<int> missing;
    std::set<std::string> hosts;
    for (size_t r = 1; r < links.size(); ++r) {
      if (links[r].open()) continue;
      missing.push_back(static_cast<int>(r));
      hosts.insert(places[r].host);
    }
    if (!missing.empty())
      failure = fmt::format("rank 0 on host {} listened at {}, but rank{} {} (host{} {}) did not connect",
                            places[0].host, endpoints_text(invitation.endpoints),
                            missing.size() == 1 ? "" : "s", ranks_text(missing), hosts.size() == 1 ? "" : "s",
                            join({hosts.begin(), hosts.end()}, ", "));
    return links;
  }
  if (options.before_connect) options.before_connect(endpoints_text(invitation.endpoints));
  std::vector<Connection> links(places.size());
  const auto& own = nth(places, rank);
  std::string tried;
  links[0] = call_root(invitation.endpoints, invitation.token, rank, own.pid, timings,
                       deadline_in(timings.connect), tried);
  if (!links[0].open())
    failure = fmt::format("rank {} on host {} cannot reach rank 0 on host {} ({})", rank, own.host,
                          places[0].host, tried);
  return links;
}

/// Rank 0's invitation, on all ranks.
Invitation share(const Meeting& meeting, const Invitation& invitation, milliseconds timeout) {
  const auto texts = exchange(meeting, meeting.rank == 0 ? encode(invitation) : "", timeout);
  // Until all have it: from here on rank 0 does not help the exchange along for a while.
  exchange(meeting, "", timeout);
  return decode(texts[0]);
}

void agree_on_success(const Meeting& meeting, const std::string& failure,
                      const std::vector<RankPlace>& places, milliseconds timeout) {
  std::vector<std::string> failures;
  size_t count = 0;
  for (auto& text : exchange(meeting, failure, timeout)) {
    if (text.empty()) continue;
    if (++count <= kMostFailuresShown) failures.push_back(std::move(text));
  }
  if (count == 0) return;
  if (count > kMostFailuresShown) failures.push_back(fmt::format("and {} more", count - kMostFailuresShown));
  throw CommError(
      fmt::format("the ranks cannot be connected: {}. Let the firewall pass TCP connections to these "
                  "addresses, or choose an "
                  "interface or address of host {} that all hosts reach with LOCKSTEP_CONTROL_INTERFACE (it "
                  "has {}), or a port that "
                  "the firewall passes with LOCKSTEP_CONTROL_PORT",
                  join(failures, "; "), places[0].host, addresses_of(places[0])),
      ExitCode::unavailable);
}

}  // namespace

std::unique_ptr<ControlPlane> start_control_plane(const Meeting& meeting, const ControlPlaneOptions& options,
                                                  const ControlTimings& timings) {
  if (meeting.size == 1)
    return std::make_unique<Watchdog>(0, std::vector<RankIdentity>{{options.host, ::getpid()}},
                                      std::vector<Connection>(1), options, timings);
  const auto places = exchange_places(meeting, options.host, timings.collective);
  Invitation invitation;
  std::vector<Listener> listeners;
  if (meeting.rank == 0) {
    try {
      invitation.token = draw_token();
      listeners = listen(places, options, invitation.refusal);
      invitation.refusal_code = ExitCode::usage;
    } catch (const std::exception& error) {
      invitation.refusal = error.what();  // the others wait for it
      invitation.refusal_code = ExitCode::unavailable;
    }
    for (const auto& listener : listeners) invitation.endpoints.push_back(listener.endpoint);
  }
  invitation = share(meeting, invitation, timings.collective);
  if (!invitation.refusal.empty())
    throw CommError("the ranks cannot be connected: " + invitation.refusal, invitation.refusal_code);
  std::string failure;
  std::vector<Connection> links;
  try {
    links = connect(meeting.rank, places, std::move(listeners), invitation, options, timings, failure);
  } catch (const std::exception& error) {
    failure = fmt::format("rank {}: {}", meeting.rank, error.what());
  }
  agree_on_success(meeting, failure, places, timings.collective);
  std::vector<RankIdentity> ranks;
  for (const auto& place : places) ranks.push_back({place.host, place.pid});
  return std::make_unique<Watchdog>(meeting.rank, std::move(ranks), std::move(links), options, timings);
}

std::unique_ptr<ControlPlane> start_control_plane(const Meeting& meeting,
                                                  const ControlPlaneOptions& options) {
  return start_control_plane(meeting, options, ControlTimings{});
}

}  // namespace lockstep::control
