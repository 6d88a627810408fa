#include "run/serve/worker_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/ensure.h"
#include "base/index.h"
#include "lockstep/error.h"

namespace lockstep::run {
WorkerSession::WorkerSession(const SessionPorts& ports, std::vector<int> servers,
                             const program::SessionTerms& terms)
    : ports_(ports), terms_(terms) {
  ensure(servers.size() == terms.ranges.size(), "terms are of all servers");
  for (const int rank : servers)
    channels_.push_back({.rank = rank, .question = {}, .answer = {}, .asked = {}, .answered = {}});
}

int WorkerSession::server_of(int rank) const {
  const auto found =
      std::ranges::find_if(channels_, [rank](const Channel& channel) { return channel.rank == rank; });
  ensure(found != channels_.end(), "who is pulled from and pushed to is a server");
  return static_cast<int>(found - channels_.begin());
}

int WorkerSession::add_pull(int server_rank, int segment, std::byte* to, int64_t size_bytes,
                            const device::Event* read) {
  const int server = server_of(server_rank);
  const auto range = std::ranges::count_if(pulls_, [&](const Pull& pull) { return pull.server == server; });
  pulls_.push_back({server, static_cast<int>(range), segment, to, size_bytes, read, {}, 0});
  return static_cast<int>(pulls_.size()) - 1;
}

int WorkerSession::add_push(int server_rank, int segment, const std::byte* from, int64_t size_bytes) {
  const int server = server_of(server_rank);
  const auto pull = std::ranges::find_if(
      pulls_, [&](const Pull& one) { return one.server == server && one.segment == segment; });
  ensure(pull != pulls_.end() && pull->size_bytes == size_bytes, "what is pushed is what was pulled");
  pushes_.push_back({.server = server,
                     .range = pull->range,
                     .from = from,
                     .size_bytes = size_bytes,
                     .message = {},
                     .header = {},
                     .gradients = {}});
  push_order_.push_back({server, pull->range});
  return static_cast<int>(pushes_.size()) - 1;
}

void WorkerSession::begin(int64_t steps) {
  terms_.steps = steps;
  protocol_.emplace(terms_, push_order_);
}

std::optional<Grant> WorkerSession::next_step(const std::function<void()>& waiting) {
  while (!sent()) waiting();
  for (;;) {
    while (const auto move = protocol_->next()) {
      if (const auto* question = std::get_if<AskServer>(&*move)) {
        ask(*question);
      } else if (const auto* leave = std::get_if<LeaveServer>(&*move)) {
        Channel& channel = nth(channels_, leave->server);
        while (!sent()) waiting();
        channel.question = {.kind = WorkerMessage::Kind::leave, .facts = {}};
        send(channel);
      } else {
        const auto& step = std::get<ComputeStep>(*move);
        const ServerMessage& granted = channels_[0].answer;
        return Grant{step.step, granted.grant, step.version, granted.totals};
      }
    }
    if (protocol_->has_left()) break;
    while (!hears(channels_[0])) waiting();
    hear();
  }
  while (!sent()) waiting();
  return {};
}

void WorkerSession::send(Channel& channel) {
  ensure(ports_.to_servers.poll(channel.asked), "who is asked again has answered");
  channel.asked =
      ports_.to_servers.start(comm::send_to(channel.rank, &channel.question, sizeof channel.question));
}

void WorkerSession::ask(const AskServer& move) {
  Channel& channel = nth(channels_, move.server);
  channel.question = {.kind = WorkerMessage::Kind::ask,
                      .clock = move.step,
                      .version = move.version.value_or(-1),
                      .number = move.server > 0 ? channels_[0].answer.grant : -1,
                      .facts = {}};
  channel.is_known = false;
  channel.answered =
      ports_.to_workers.start(comm::receive_from(channel.rank, &channel.answer, sizeof channel.answer));
  send(channel);
  // The coordinator may refuse; the others answer.
  if (move.server > 0) receive_ranges(move.server, move.version.value_or(0));
}

void WorkerSession::receive_ranges(int server, int64_t version) {
  for (Pull& pull : pulls_) {
    if (pull.server != server) continue;
    ensure(pull.read == nullptr || pull.read->ready(), "a step is complete when the next one is asked for");
    pull.slices.clear();
    pull.arrived = 0;
    for (int64_t begin = 0, size_bytes = 0; begin < pull.size_bytes; begin += size_bytes) {
      size_bytes = terms_.slice_at(begin, pull.size_bytes);
      pull.slices.push_back(ports_.to_workers.start(
          comm::receive_from(nth(channels_, server).rank, pull.to + begin, size_bytes)));
    }
    protocol_->answered(server, pull.range, version);
  }
}

bool WorkerSession::hears(Channel& channel) {
  if (!channel.is_known) channel.is_known = ports_.to_workers.poll(channel.answered);
  return channel.is_known;
}

void WorkerSession::hear() {
  const ServerMessage& said = channels_[0].answer;
  if (said.kind == ServerMessage::Kind::refuse) return protocol_->refused();
  receive_ranges(0, said.version);
}

bool WorkerSession::has_arrived(int number) {
  Pull& pull = nth(pulls_, number);
  Channel& channel = nth(channels_, pull.server);
  if (!hears(channel)) return false;
  // The bound is the worker's, too: it reads one version of all ranges, which the coordinator has told it.
  if (terms_.bound && channel.answer.version != channels_[0].answer.version)
    throw InternalError(fmt::format("rank {} answers with version {} of its ranges, and rank {} with {}",
                                    channel.rank, channel.answer.version, channels_[0].rank,
                                    channels_[0].answer.version));
  if (channel.answer.asks_stop != 0) ask_to_stop();
  while (pull.arrived < pull.slices.size() && ports_.to_workers.poll(pull.slices[pull.arrived]))
    ++pull.arrived;
  return pull.arrived == pull.slices.size();
}

void WorkerSession::push(int number, const std::optional<PushFacts>& facts) {
  Push& push = nth(pushes_, number);
  const auto move = protocol_->next();
  const auto* said = move ? std::get_if<PushRange>(&*move) : nullptr;
  ensure(said != nullptr && said->server == push.server && said->range == push.range,
         "pushes come in their order");
  push.message = {.kind = WorkerMessage::Kind::push,
                  .range = said->range,
                  .clock = said->clock,
                  .asks_stop = said->stop ? 1 : 0,
                  .completes = facts ? 1 : 0,
                  .facts = facts.value_or(PushFacts{})};
  const int rank = nth(channels_, push.server).rank;
  push.header = ports_.to_servers.start(comm::send_to(rank, &push.message, sizeof push.message));
  push.gradients = ports_.to_servers.start(comm::send_to(rank, push.from, push.size_bytes));
}

bool WorkerSession::has_sent(int number) {
  Push& push = nth(pushes_, number);
  const bool header = ports_.to_servers.poll(push.header);
  return ports_.to_servers.poll(push.gradients) && header;
}

void WorkerSession::progress() { sent(); }

bool WorkerSession::sent() {
  bool all = true;
  for (int push = 0; push < static_cast<int>(pushes_.size()); ++push) all = has_sent(push) && all;
  for (Channel& channel : channels_) {
    const bool asked = ports_.to_servers.poll(channel.asked);
    all = all && asked;
  }
  return all;
}

}  // namespace lockstep::run
