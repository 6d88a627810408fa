#include "run/serve/world.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/ensure.h"
#include "base/index.h"
#include "run/serve/state_hash.h"

namespace lockstep::run {
namespace {

using Kind = Happening::Kind;

program::SessionTerms with_bound(program::SessionTerms terms, int more) {
  if (terms.bound) *terms.bound += more;
  return terms;
}

std::vector<RangeOfServer> push_order(const program::SessionTerms& terms, bool counted_last) {
  std::vector<RangeOfServer> order;
  for (int server = 0; server < static_cast<int>(terms.ranges.size()); ++server)
    for (int range = 0; range < nth(terms.ranges, server); ++range) order.push_back({server, range});
  if (counted_last) std::ranges::reverse(order);
  return order;
}

}  // namespace

std::string describe(const Happening& happening) {
  const std::string worker = "worker " + std::to_string(happening.worker);
  const std::string server = "server " + std::to_string(happening.server);
  switch (happening.kind) {
    case Kind::worker_moves:
      return worker + " moves";
    case Kind::server_decides:
      return server + " decides";
    case Kind::server_hears:
      return server + " hears " + worker;
    case Kind::worker_hears:
      return worker + " hears " + server;
    case Kind::worker_dies:
      return worker + " dies";
    case Kind::death_is_noticed:
      return server + " notices the death of " + worker;
    case Kind::stop_is_asked:
      return worker + " is asked to stop";
  }
  return {};
}

World::World(const Scene& scene)
    : scene_(&scene), deaths_left_(scene.deaths), stops_left_(scene.stops), end_(scene.terms.steps) {
  const program::SessionTerms at_workers = with_bound(scene.terms, scene.flaws.bound_exceeded);
  program::SessionTerms at_servers = with_bound(at_workers, scene.flaws.hasty_servers);
  at_servers.steps += scene.flaws.steps_exceeded;
  for (int server = 0; server < static_cast<int>(scene.terms.ranges.size()); ++server) {
    ServerMemory memory(at_workers, server, scene.flaws.memory);
    const program::SessionTerms its =
        with_bound(at_servers, server == 0 ? 0 : -scene.flaws.forgetful_servers);
    if (scene.terms.bound)
      servers_.push_back(
          {.protocol = StaleServer(its, server), .memory = std::move(memory), .arrived = {}, .held = {}});
    else
      servers_.push_back(
          {.protocol = AsyncServer(its, server), .memory = std::move(memory), .arrived = {}, .held = {}});
    const auto ranges = static_cast<size_t>(nth(scene.terms.ranges, server));
    servers_.back().arrived.resize(ranges);
    servers_.back().held.resize(ranges);
  }
  const std::vector<RangeOfServer> order = push_order(at_workers, scene.counted_last);
  for (int worker = 0; worker < scene.terms.workers; ++worker)
    workers_.push_back({SessionWorker(at_workers, order), std::vector<Contents>(order.size())});
  links_.resize(servers_.size() * workers_.size());
  if (scene.prompt) settle();
}

World::Link& World::link(int worker, int server) { return nth(links_, worker * servers() + server); }

const World::Link& World::link(int worker, int server) const {
  return nth(links_, worker * servers() + server);
}

int World::place(int server, int range) const {
  return std::accumulate(scene_->terms.ranges.begin(), scene_->terms.ranges.begin() + server, range);
}

int64_t World::most_granted() const {
  int64_t most = 0;
  for (const Worker& worker : workers_) most = std::max(most, worker.granted);
  return most;
}

int64_t World::whole_rounds(int64_t steps) const {
  const auto workers = static_cast<int64_t>(workers_.size());
  return (steps + workers - 1) / workers * workers;
}

int64_t World::granted() const {
  int64_t steps = 0;
  for (const Worker& worker : workers_) steps += worker.granted;
  return steps;
}

std::vector<Happening> World::candidates() const {
  std::vector<Happening> all;
  const auto add = [&](Kind kind, int worker, int server) {
    all.push_back({kind, static_cast<int8_t>(worker), static_cast<int8_t>(server)});
  };
  for (int w = 0; w < workers(); ++w) {
    const bool dead = nth(workers_, w).dead;
    if (!dead && !scene_->prompt) add(Kind::worker_moves, w, -1);
    if (!dead && deaths_left_ > 0) add(Kind::worker_dies, w, -1);
    if (!dead && stops_left_ > 0) add(Kind::stop_is_asked, w, -1);
    for (int s = 0; s < servers(); ++s) {
      if (!link(w, s).to_server.empty()) add(Kind::server_hears, w, s);
      if (!link(w, s).to_worker.empty()) add(Kind::worker_hears, w, s);
      if (dead && !link(w, s).noticed) add(Kind::death_is_noticed, w, s);
    }
  }
  if (scene_->prompt) return all;
  for (int s = 0; s < servers(); ++s) add(Kind::server_decides, -1, s);
  return all;
}

bool World::happen(const Happening& happening) {
  const auto [kind, worker, server] = happening;
  const bool happened = kind == Kind::worker_moves       ? move(worker)
                        : kind == Kind::server_decides   ? decide(server)
                        : kind == Kind::server_hears     ? server_hears(worker, server)
                        : kind == Kind::worker_hears     ? worker_hears(worker, server)
                        : kind == Kind::worker_dies      ? die(worker)
                        : kind == Kind::death_is_noticed ? notice_death(worker, server)
                                                         : ask_to_stop(worker);
  if (happened && scene_->prompt) settle();
  return happened;
}

/// Neither a worker's move nor a decision lets another one move or decide: something has to be heard first.
void World::settle() {
  for (int worker = 0; worker < workers(); ++worker)
    while (move(worker)) {
    }
  for (int server = 0; server < servers(); ++server)
    while (decide(server)) {
    }
}

bool World::move(int worker) {
  Worker& its = nth(workers_, worker);
  if (its.dead) return false;
  const auto next = its.protocol.next();
  if (next) std::visit([&](const auto& what) { carry_out(worker, what); }, *next);
  return next.has_value();
}

void World::carry_out(int worker, const AskServer& ask) {
  Message message{Message::Kind::ask};
  message.number = ask.step;
  message.version = ask.version;
  link(worker, ask.server).to_server.push_back(message);
}

void World::carry_out(int worker, const ComputeStep& step) {
  const std::optional<int> bound = scene_->terms.bound;
  for (const Contents& contents : nth(workers_, worker).read) {
    if (!bound) {
      ensure(nth(contents, worker) == step.step, "a worker reads its own pushes");
      continue;
    }
    ensure(step.version >= step.step - *bound && step.version <= step.step, "a step reads within the bound");
    ensure(std::all_of(contents.begin(), contents.begin() + workers(),
                       [&](int pushes) { return pushes == step.version; }),
           "a step reads all ranges at one version, which has seen all workers' pushes alike");
  }
}

void World::carry_out(int worker, const PushRange& push) {
  const Contents& read = nth(nth(workers_, worker).read, place(push.server, push.range));
  nth(servers_, push.server).memory.send(worker, push.range, push.clock, push.slot, read);
  Message message{Message::Kind::push, push.stop, completes(push)};
  message.range = static_cast<int16_t>(push.range);
  message.number = push.clock;
  link(worker, push.server).to_server.push_back(message);
}

void World::carry_out(int worker, const LeaveServer& leave) {
  link(worker, leave.server).to_server.push_back({Message::Kind::leave});
}

bool World::decide(int server) {
  Server& its = nth(servers_, server);
  const auto statistics = [&]() -> const Staleness& {
    return std::visit([](const auto& protocol) -> const Staleness& { return protocol.staleness(); },
                      its.protocol);
  };
  const int64_t before = statistics().sum;
  const auto decision = std::visit([](auto& protocol) { return protocol.decide(); }, its.protocol);
  if (!decision) return false;
  ensure(!its.over, "nothing is decided after the end");
  const int64_t staleness = std::visit([&](const auto& what) { return carry_out(server, what); }, *decision);
  ensure(statistics().sum - before == staleness, "staleness is counted");
  return true;
}

int64_t World::carry_out(int server, const ApplyClock& apply) {
  for (int worker = 0; worker < workers(); ++worker)
    for (const Message& message : link(worker, server).to_worker) {
      if (message.kind != Message::Kind::answer) continue;
      ensure(message.copy == kNoCopy || message.copy != apply.keep,
             "no answer is still on its way out of a copy that is written");
      ensure(message.copy != kNoCopy || nth(workers_, worker).protocol.steps() > apply.clock,
             "of current contents, only answers to workers that are ahead are still on their way");
    }
  return nth(servers_, server).memory.carry_out(apply);
}

int64_t World::carry_out(int server, const ApplyPush& apply) {
  if (scene_->flaws.dead_pushes_are_dropped && apply.range > 0 && nth(workers_, apply.worker).dead)
    return apply.staleness;
  return nth(servers_, server).memory.carry_out(apply);
}

int64_t World::carry_out(int server, const AnswerPull& answer) {
  Worker& its = nth(workers_, answer.worker);
  if (server == 0 && answer.range == 0) ++its.granted;
  if (its.dead) return 0;
  Message message{Message::Kind::answer};
  message.range = static_cast<int16_t>(answer.range);
  message.copy = static_cast<int16_t>(answer.copy);
  message.number = answer.version;
  message.contents = nth(servers_, server).memory.answer(answer);
  link(answer.worker, server).to_worker.push_back(message);
  return 0;
}

int64_t World::carry_out(int server, const RefuseStep& refusal) {
  if (!nth(workers_, refusal.worker).dead)
    link(refusal.worker, server).to_worker.push_back({Message::Kind::refusal});
  return 0;
}

int64_t World::carry_out(int server, const ReportLost& report) {
  ensure(scene_->terms.bound.has_value() && nth(workers_, report.worker).dead,
         "who is reported lost is dead");
  nth(servers_, server).over = nth(servers_, server).reports = true;
  return 0;
}

int64_t World::carry_out(int server, const EndSession&) {
  for (int worker = 0; worker < workers(); ++worker)
    ensure(link(worker, server).to_server.empty() && link(worker, server).to_worker.empty(),
           "nothing is on its way when a session ends");
  nth(servers_, server).over = true;
  return 0;
}

/// The last one of a step to its server, or each.
bool World::completes(const PushRange& push) const {
  if (!scene_->complete_at_last) return true;
  return push.range == (scene_->counted_last ? 0 : nth(scene_->terms.ranges, push.server) - 1);
}

void World::arrive(Server& server, int worker, const Message& push) {
  ++nth(nth(server.held, push.range), worker);
  if (!push.completes) return;
  for (size_t range = 0; range < server.held.size(); ++range)
    nth(server.arrived[range], worker) += std::exchange(nth(server.held[range], worker), 0);
}

bool World::server_hears(int worker, int server) {
  Channel& channel = link(worker, server).to_server;
  if (channel.empty()) return false;
  const auto first = scene_->flaws.messages_overtake ? channel.end() - 1 : channel.begin();
  const Message message = *first;
  channel.erase(first);
  auto& protocol = nth(servers_, server).protocol;
  if (scene_->flaws.refusals_are_hasty && message.kind == Message::Kind::ask && server == 0 &&
      granted() >= end_) {
    link(worker, server).to_worker.push_back({Message::Kind::refusal});
    return true;
  }
  switch (message.kind) {
    case Message::Kind::ask:
      std::visit([&](auto& its) { its.asked(worker, message.number, message.version); }, protocol);
      break;
    case Message::Kind::push:
      if (auto* stale = std::get_if<StaleServer>(&protocol))
        stale->pushed(worker, message.range, message.number, message.stop);
      else
        std::get<AsyncServer>(protocol).pushed(worker, message.range, message.number,
                                               message.completes || scene_->flaws.pushes_complete_early,
                                               message.stop);
      arrive(nth(servers_, server), worker, message);
      if (message.stop) end_ = std::min(end_, scene_->terms.bound ? most_granted() : whole_rounds(granted()));
      break;
    default:
      std::visit([&](auto& its) { its.left(worker); }, protocol);
  }
  return true;
}

bool World::worker_hears(int worker, int server) {
  Channel& channel = link(worker, server).to_worker;
  if (channel.empty()) return false;
  const Message message = channel.front();
  channel.erase(channel.begin());
  Worker& its = nth(workers_, worker);
  if (message.kind == Message::Kind::refusal) {
    its.protocol.refused();
    return true;
  }
  // Without a bound an answer is copied in slices, the last of which may be as new as this.
  if (!scene_->terms.bound)
    ensure(nth(nth(nth(servers_, server).memory.current(), message.range), worker) ==
               nth(message.contents, worker),
           "of the worker's own pushes, all slices of an answer have seen the same");
  its.protocol.answered(server, message.range, message.number);
  nth(its.read, place(server, message.range)) = message.contents;
  return true;
}

bool World::die(int worker) {
  Worker& its = nth(workers_, worker);
  bool is_gone = its.protocol.has_left();
  for (int server = 0; server < servers(); ++server)
    is_gone = is_gone && link(worker, server).to_server.empty();
  if (is_gone) return false;
  its.dead = true;
  for (int server = 0; server < servers(); ++server) link(worker, server).to_worker.clear();
  --deaths_left_;
  return true;
}

bool World::notice_death(int worker, int server) {
  if (server == 0 && scene_->flaws.deaths_go_unnoticed) return false;
  link(worker, server).noticed = true;
  link(worker, server).to_server.clear();
  Worker& its = nth(workers_, worker);
  for (Contents& contents : nth(servers_, server).held) nth(contents, worker) = 0;
  if (server == 0) its.granted = nth(nth(servers_, 0).arrived.front(), worker);
  std::visit([&](auto& protocol) { protocol.lost(worker); }, nth(servers_, server).protocol);
  return true;
}

bool World::ask_to_stop(int worker) {
  if (nth(workers_, worker).protocol.has_left()) return false;
  nth(workers_, worker).protocol.stop();
  --stops_left_;
  return true;
}

void World::check_end() const {
  // A server that has reported a loss answers nobody: the others may wait for ever, until the job is ended.
  const bool fails = std::ranges::any_of(servers_, [](const Server& server) { return server.reports; });
  for (const Server& server : servers_) ensure(fails || server.over, "every server's session ends");
  for (const Worker& worker : workers_)
    ensure(fails || worker.dead || worker.protocol.has_left(), "every worker leaves");
  for (const Link& link : links_)
    ensure(link.to_worker.empty() && link.to_server.empty(), "every message is heard");
  if (scene_->terms.bound)
    check_stale_end();
  else
    check_async_end();
}

void World::check_stale_end() const {
  const bool all_left = std::ranges::none_of(workers_, [](const Worker& worker) { return worker.dead; });
  if (!all_left) return;
  for (const Worker& worker : workers_)
    ensure(worker.protocol.steps() == end_, "all workers end at the same step, which is the right one");
  for (const Server& server : servers_)
    for (const Contents& contents : server.memory.current())
      ensure(std::all_of(contents.begin(), contents.begin() + workers(),
                         [&](int pushes) { return pushes == end_; }),
             "all that was pushed is applied");
}

void World::check_async_end() const {
  const auto& coordinator = std::get<AsyncServer>(nth(servers_, 0).protocol);
  const Contents& counted = nth(servers_, 0).memory.current().front();
  const int64_t done = std::accumulate(counted.begin(), counted.end(), int64_t{0});
  const bool some_left = std::ranges::any_of(workers_, [](const Worker& worker) { return !worker.dead; });
  ensure(done == coordinator.steps_done(), "the coordinator counts steps");
  ensure(some_left ? done == end_ : done <= end_, "so many steps are done in all");
  for (const Server& server : servers_) {
    ensure(server.memory.current() == server.arrived, "all that has arrived is applied, of dead workers too");
    for (const Contents& contents : server.memory.current())
      for (int worker = 0; worker < workers(); ++worker) {
        const Worker& its = nth(workers_, worker);
        // Whoever dies while it asks for a step, or pushes, may have sent what arrives nowhere: of the step
        // before, whose pushes nobody has acknowledged, or of this one.
        const int64_t steps = its.protocol.steps();
        ensure(nth(contents, worker) >= (its.dead ? steps - 1 : steps) &&
                   nth(contents, worker) <= (its.dead ? steps + 1 : steps),
               "all that was pushed is applied");
      }
  }
}

uint64_t World::hash() const {
  StateHash hash;
  for (const Server& server : servers_) {
    std::visit([&](const auto& protocol) { hash.add(protocol); }, server.protocol);
    hash.add(std::tie(server.memory, server.over, server.reports, server.arrived, server.held));
  }
  hash.add(workers_);
  hash.add(links_);
  hash.add(std::tie(deaths_left_, stops_left_, end_));
  return hash.value();
}

}  // namespace lockstep::run
