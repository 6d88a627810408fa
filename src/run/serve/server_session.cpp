#include "run/serve/server_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/ensure.h"
#include "base/index.h"
#include "lockstep/error.h"
#include "run/bind.h"

namespace lockstep::run {
namespace {

/// One update of a clock has the sums of all workers in it; without a bound, a push alone is an update, of
/// the mean over its worker's share. So a statistic is given one push's mean, and of as much less weight that
/// a step's pushes together forget what one update would.
void adapt_to_pushes(UpdateCall& update, int pushes_per_step) {
  update.statistic_scale *= pushes_per_step;
  for (auto& piece : update.pieces)
    if (piece.is_statistic)
      piece.momentum =
          static_cast<float>(1 - std::pow(1 - static_cast<double>(piece.momentum), 1.0 / pushes_per_step));
}

}  // namespace

ServerSession::ServerSession(const SessionPorts& ports, std::vector<int> workers, int server,
                             const program::SessionTerms& terms, const program::Program& program,
                             const ExecutionContext& context, StampRecorder* recorder)
    : ports_(ports),
      terms_(terms),
      server_(server),
      slots_(program::landing_slots(terms)),
      recorder_(recorder),
      kernels_(make_step_kernels(device::DeviceKind::cpu, context.update_threads, context.sum_order)),
      device_(context.device),
      updates_before_(context.updates_before),
      processor_(device::make_cpu_device()),
      stream_(processor_->create_stream("serve")) {
  ensure(static_cast<int>(workers.size()) == terms.workers, "terms are of all workers");
  for (int i = 0; i < static_cast<int>(program.instructions.size()); ++i) {
    if (program.instruction(i).kind != program::InstructionKind::serve) continue;
    ranges_.push_back(bind_serve({program, context, nullptr, kernels_, i}));
    serves_.push_back(i);
  }
  share_scratch();
  ensure(static_cast<int>(ranges_.size()) == nth(terms.ranges, server), "each range has a serve");
  const int copies = program::kept_copies(terms, server);
  for (ServedRange& range : ranges_) {
    ensure(static_cast<int>(range.landings.size()) == slots_ * terms.workers,
           "each push has a place to land");
    ensure(static_cast<int>(range.copies.size()) == copies, "each copy has a place");
    if (!terms.bound) adapt_to_pushes(range.update, terms.pushes_per_step());
    range.update.verdict = &verdict_;
    range.update.constants = &constants_;
  }
  for (const int rank : workers) {
    Channel& channel = channels_.emplace_back(Channel{.rank = rank});
    channel.answers.resize(ranges_.size());
    if (!terms.bound)
      channel.in_slices = std::make_unique<SlicedAnswer>(
          ports.to_workers, rank, static_cast<int>(channels_.size()) - 1, terms, ranges_);
  }
  facts_.resize(static_cast<size_t>(slots_) * workers.size());
}

/// Ranges are updated one after the other.
void ServerSession::share_scratch() {
  int64_t most = 0;
  for (const ServedRange& range : ranges_) most = std::max(most, range.scratch_bytes);
  if (most == 0) return;
  scratch_ = device_.allocate_host(most);
  for (ServedRange& range : ranges_) use_scratch(range.update, scratch_.data());
}

void ServerSession::begin(const ServerInputs& inputs) {
  ensure(over_, "one session after the other");
  inputs_ = inputs;
  terms_.steps = inputs.steps;
  if (terms_.bound)
    protocol_.emplace<StaleServer>(terms_, server_);
  else
    protocol_.emplace<AsyncServer>(terms_, server_);
  copy_from_device();
  std::ranges::fill(facts_, StepFacts{});
  arrived_.assign(ranges_.size(), 0);
  updates_.assign(ranges_.size(), 0);
  applied_.assign(ranges_.size(), 0);
  totals_ = {};
  granted_ = 0;
  lost_numbers_.clear();
  busy_ms_ = 0;
  over_ = false;
  for (Channel& channel : channels_) listen(channel);
}

const Staleness& ServerSession::staleness() const {
  const auto* stale = std::get_if<StaleServer>(&protocol_);
  return stale != nullptr ? stale->staleness() : std::get<AsyncServer>(protocol_).staleness();
}

void ServerSession::listen(Channel& channel) {
  channel.is_open = true;
  channel.lands = false;
  channel.heard =
      ports_.to_servers.start(comm::receive_from(channel.rank, &channel.message, sizeof channel.message));
}

bool ServerSession::advance() {
  bool moved = false;
  for (int worker = 0; worker < terms_.workers && !over_; ++worker) {
    const bool heard = hear(worker);
    const bool sent = send_slices(worker);
    watch_answer(worker);
    const bool carried_out = carry_out();
    moved = moved || heard || sent || carried_out;
    // That may have taken as long as the update of a large range: nobody's link is idle for longer.
    for (int other = 0; carried_out && other < terms_.workers; ++other) send_slices(other);
  }
  return moved;
}

/// Of the answer to a worker, as many as have room; true if there were any.
bool ServerSession::send_slices(int worker) {
  SlicedAnswer* const answer = nth(channels_, worker).in_slices.get();
  return answer != nullptr && answer->advance();
}

/// The next message of a worker; false if none has come.
bool ServerSession::hear(int worker) {
  Channel& channel = nth(channels_, worker);
  if (!channel.is_open) return false;
  if (channel.lands) {
    if (!ports_.to_servers.poll(channel.landed)) return false;
    const bool stop = channel.message.asks_stop != 0 ||
                      (server_ == 0 && inputs_.stop_requested && inputs_.stop_requested());
    const WorkerMessage& message = channel.message;
    stamp(StampKind::landing, message.range, worker, iteration_of(channel), channel.landing_began);
    if (auto* stale = std::get_if<StaleServer>(&protocol_))
      stale->pushed(worker, message.range, message.clock, stop);
    else
      std::get<AsyncServer>(protocol_).pushed(worker, message.range, message.clock, message.completes != 0,
                                              stop);
    ++nth(arrived_, message.range);
    listen(channel);
    return true;
  }
  if (!ports_.to_servers.poll(channel.heard)) return false;
  react(worker);
  return true;
}

void ServerSession::react(int worker) {
  Channel& channel = nth(channels_, worker);
  const WorkerMessage& message = channel.message;
  if (message.kind == WorkerMessage::Kind::push) {
    const int slot = program::landing_slot(message.clock, slots_);
    const ServedRange& range = nth(ranges_, message.range);
    if (message.completes != 0) nth(facts_, slot * terms_.workers + worker) = {message.clock, message.facts};
    channel.lands = true;
    channel.landing_began = Clock::now();
    channel.landed = ports_.to_servers.start(
        comm::receive_from(channel.rank, range.landing(slot, worker), range.size_bytes));
    return;
  }
  std::visit(
      [&](auto& server) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(server)>, std::monostate>) {
          if (message.kind == WorkerMessage::Kind::leave)
            server.left(worker);
          else
            server.asked(worker, message.clock,
                         message.version < 0 ? std::nullopt : std::optional(message.version));
        }
      },
      protocol_);
  channel.is_open = false;
  if (message.kind != WorkerMessage::Kind::ask) return;
  channel.asked_step = message.clock;
  channel.asked_number = message.number;
  listen(channel);
}

void ServerSession::lost(int worker) {
  Channel& channel = nth(channels_, worker);
  if (over_ || channel.is_lost) return;
  channel.is_lost = true;
  channel.is_open = false;
  if (channel.in_slices) channel.in_slices->drop();
  if (auto* stale = std::get_if<StaleServer>(&protocol_)) return stale->lost(worker);
  auto& server = std::get<AsyncServer>(protocol_);
  const int64_t before = server.steps_lost();
  // Nobody was told that these have arrived: the next step's answer would have said so.
  for (int range = 0; range < static_cast<int>(ranges_.size()); ++range)
    if (server.holds(worker, range)) --nth(arrived_, range);
  server.lost(worker);
  const auto is_for_it = [worker](const auto& decision) {
    using Kind = std::decay_t<decltype(decision)>;
    if constexpr (std::is_same_v<Kind, AnswerPull> || std::is_same_v<Kind, RefuseStep>)
      return decision.worker == worker;
    return false;
  };
  const bool was_decided = decided_ && std::visit(is_for_it, *decided_);
  // A grant that was decided and not yet carried out has no number.
  const auto* grant = was_decided ? std::get_if<AnswerPull>(&*decided_) : nullptr;
  const bool has_number = grant == nullptr || grant->range > 0;
  if (server.steps_lost() > before && has_number) lost_numbers_.push_back(channel.number);
  if (was_decided) decided_.reset();
}

std::optional<Decision> ServerSession::decide() {
  if (auto* stale = std::get_if<StaleServer>(&protocol_)) return stale->decide();
  return std::get<AsyncServer>(protocol_).decide();
}

/// Carries out a decision, or a part of it; false if there is none, or it has to wait.
bool ServerSession::carry_out() {
  if (!decided_) decided_ = decide();
  if (!decided_) return false;
  const auto begin = Clock::now();
  const bool done = std::visit([this](const auto& decision) { return carry_out(decision); }, *decided_);
  if (done || part_ > 0) busy_ms_ += milliseconds_between(begin, Clock::now());
  if (done) decided_.reset();
  return done || part_ > 0;
}

/// One range at a time: between them, messages arrive.
bool ServerSession::carry_out(const ApplyClock& decision) {
  if (part_ == 0) {
    if (!current_is_sent()) return false;
    verdict_ = {};
    for (int worker = 0; worker < terms_.workers; ++worker)
      count(facts(decision.slot, worker, decision.clock));
    ++totals_.updates;
    if (verdict_.finite == 0) ++totals_.skipped;
    if (inputs_.before_update) inputs_.before_update(decision.clock);
  }
  const auto began = Clock::now();
  ServedRange& range = nth(ranges_, part_);
  if (decision.keep != kNoCopy)
    std::memcpy(nth(range.copies, decision.keep), range.contents, static_cast<size_t>(range.size_bytes));
  sum_pushes(range, decision.slot, decision.clock);
  update(range, range.landing(decision.slot, 0));
  stamp(StampKind::update, part_, -1, inputs_.first_iteration + static_cast<uint64_t>(decision.clock), began);
  part_ = part_ + 1 == static_cast<int>(ranges_.size()) ? 0 : part_ + 1;
  return part_ == 0;
}

bool ServerSession::carry_out(const ApplyPush& decision) {
  const auto began = Clock::now();
  const PushFacts& pushed = facts(0, decision.worker, decision.clock);
  if (decision.range == 0) {
    if (inputs_.before_update) inputs_.before_update(totals_.updates);
    verdict_ = {};
    count(pushed);
    ++totals_.updates;
    if (pushed.finite == 0) ++totals_.skipped;
  }
  verdict_.count = pushed.count;
  verdict_.finite = pushed.finite;
  verdict_.gradient_scale = pushed.gradient_scale;
  ServedRange& range = nth(ranges_, decision.range);
  update(range, range.landing(0, decision.worker));
  stamp(StampKind::update, decision.range, decision.worker, iteration_of(nth(channels_, decision.worker)),
        began);
  return true;
}

bool ServerSession::carry_out(const AnswerPull& decision) {
  Channel& channel = nth(channels_, decision.worker);
  Answer& answer = nth(channel.answers, decision.range);
  // Whoever asks again has got the last answer, though the transport may not have told so yet.
  if (!is_sent(decision.worker, decision.range)) return false;
  if (channel.in_slices && decision.range == 0 && !is_answered(decision.worker)) return false;
  const ServedRange& range = nth(ranges_, decision.range);
  if (decision.range == 0) {
    if (!ports_.to_workers.poll(channel.replied)) return false;
    // Until now, pushes of the step before may have waited to be applied.
    channel.number = server_ == 0 ? next_number() : channel.asked_number;
    channel.step = channel.asked_step;
    reply(channel, {.asks_stop = server_ > 0 && inputs_.stop_requested && inputs_.stop_requested() ? 1 : 0,
                    .version = decision.version,
                    .grant = channel.number,
                    .totals = totals_});
  }
  answer.began = Clock::now();
  answer.iteration = iteration_of(channel);
  answer.is_under_way = true;
  if (channel.in_slices) {
    channel.in_slices->add(decision.range);
    channel.in_slices->advance();
    return true;
  }
  const std::byte* from = decision.copy != kNoCopy ? nth(range.copies, decision.copy) : range.contents;
  answer.is_current = from == range.contents;
  answer.ticket = ports_.to_workers.start(comm::send_to(channel.rank, from, range.size_bytes));
  return true;
}

bool ServerSession::carry_out(const RefuseStep& decision) {
  return reply(nth(channels_, decision.worker), {.kind = ServerMessage::Kind::refuse, .totals = totals_});
}

bool ServerSession::carry_out(const ReportLost& decision) {
  throw CommError(fmt::format("rank {} was lost, and no version is complete without it",
                              nth(channels_, decision.worker).rank));
}

bool ServerSession::carry_out(const EndSession&) {
  for (int worker = 0; worker < terms_.workers; ++worker)
    if (!nth(channels_, worker).is_lost && !is_answered(worker)) return false;
  // Whoever was told that a push has arrived finds it in the checkpoint that follows, lost workers or not.
  const int pushes_per_update = terms_.bound ? terms_.workers : 1;
  for (size_t range = 0; range < ranges_.size(); ++range)
    ensure(arrived_[range] == updates_[range] * pushes_per_update,
           "all pushes that have arrived are applied");
  copy_to_device();
  over_ = true;
  return true;
}

void ServerSession::copy_from_device() {
  for (const ServedRange& range : ranges_) {
    if (range.replica != nullptr) device_.copy_now(range.contents, range.replica, range.size_bytes);
    device_.copy_now(range.state_mirror.data(), range.state, range.state_mirror.size_bytes());
  }
}

void ServerSession::copy_to_device() {
  for (const ServedRange& range : ranges_) {
    if (range.replica != nullptr) device_.copy_now(range.replica, range.contents, range.size_bytes);
    device_.copy_now(range.state, range.state_mirror.data(), range.state_mirror.size_bytes());
  }
}

bool ServerSession::has_lost_transfers() {
  for (int worker = 0; worker < terms_.workers; ++worker) {
    Channel& channel = nth(channels_, worker);
    if (!channel.is_lost) continue;
    if ((channel.lands && !ports_.to_servers.poll(channel.landed)) || !is_answered(worker)) return true;
  }
  return false;
}

/// Whether the last answer to a worker is sent.
bool ServerSession::is_answered(int worker) {
  bool all = ports_.to_workers.poll(nth(channels_, worker).replied);
  for (int range = 0; range < static_cast<int>(ranges_.size()); ++range) all = is_sent(worker, range) && all;
  return all;
}

bool ServerSession::is_sent(int worker, int range) {
  Channel& channel = nth(channels_, worker);
  Answer& answer = nth(channel.answers, range);
  if (!answer.is_under_way) return true;
  if (channel.in_slices ? !channel.in_slices->is_sent(range) : !ports_.to_workers.poll(answer.ticket))
    return false;
  answer.is_under_way = false;
  // Ranges of an answer in slices follow each other; one to a lost worker may never have begun.
  const auto began = channel.in_slices ? channel.in_slices->began(range) : answer.began;
  stamp(StampKind::answer, range, worker, answer.iteration, std::max(answer.began, began));
  return true;
}

/// For timelines, which tell when an answer was sent; nobody else needs to know before the next one.
void ServerSession::watch_answer(int worker) {
  const Channel& channel = nth(channels_, worker);
  if (recorder_ == nullptr || !recorder_->wants(iteration_of(channel))) return;
  for (int range = 0; range < static_cast<int>(ranges_.size()); ++range)
    if (!is_sent(worker, range)) return;
}

/// Of the step that a worker was granted last.
uint64_t ServerSession::iteration_of(const Channel& channel) const {
  return inputs_.first_iteration + static_cast<uint64_t>(terms_.bound ? channel.step : channel.number);
}

/// What ends now.
void ServerSession::stamp(StampKind kind, int range, int worker, uint64_t iteration,
                          Clock::time_point begin) const {
  if (recorder_ != nullptr && recorder_->wants(iteration))
    recorder_->add({.kind = kind,
                    .instruction = nth(serves_, range),
                    .worker = worker,
                    .iteration = iteration,
                    .begin = begin,
                    .end = Clock::now()});
}

/// Of a step that is granted: those that were lost first, so that their part of the data is not left out.
int64_t ServerSession::next_number() {
  if (lost_numbers_.empty()) return granted_++;
  const int64_t number = lost_numbers_.back();
  lost_numbers_.pop_back();
  return number;
}

bool ServerSession::reply(Channel& channel, const ServerMessage& message) {
  if (!ports_.to_workers.poll(channel.replied)) return false;
  channel.reply = message;
  channel.replied =
      ports_.to_workers.start(comm::send_to(channel.rank, &channel.reply, sizeof channel.reply));
  return true;
}

bool ServerSession::current_is_sent() {
  for (int worker = 0; worker < terms_.workers; ++worker)
    for (int range = 0; range < static_cast<int>(ranges_.size()); ++range)
      if (nth(nth(channels_, worker).answers, range).is_current && !is_sent(worker, range)) return false;
  return true;
}

/// Along the tree, whatever the order of arrival.
void ServerSession::sum_pushes(const ServedRange& range, int slot, int64_t clock) {
  for (int worker = 0; worker < terms_.workers; ++worker) scale_push(range, slot, worker, clock);
  for (int distance = 1; distance < terms_.workers; distance *= 2)
    for (int worker = 0; worker + distance < terms_.workers; worker += 2 * distance)
      kernels_->add(range.landing(slot, worker), range.landing(slot, worker + distance), DType::float32,
                    range.size_bytes / 4, *stream_);
}

/// Clipping is each push's own. Statistics are no gradients.
void ServerSession::scale_push(const ServedRange& range, int slot, int worker, int64_t clock) {
  const auto scale = static_cast<float>(facts(slot, worker, clock).gradient_scale);
  if (scale == 1) return;
  auto* gradients = reinterpret_cast<float*>(range.landing(slot, worker));
  const auto scale_piece = [&](const UpdateCall::Piece& piece) {
    for (int64_t i = piece.offset; i < piece.offset + piece.count && !piece.is_statistic; ++i)
      gradients[i] *= scale;
  };
  for (const UpdateCall::Piece& piece : range.update.pieces) scale_piece(piece);
  for (const UpdateCall::Matrix& matrix : range.update.matrices) scale_piece(matrix.piece);
}

void ServerSession::update(ServedRange& range, const std::byte* gradients) {
  const auto place = &range - ranges_.data();
  constants_ = inputs_.constants(nth(updates_, place)++, nth(applied_, place));
  if (verdict_.finite != 0) ++nth(applied_, place);
  range.update.gradients = reinterpret_cast<const float*>(gradients);
  if (updates_before_ != nullptr) tell_updates_before(range.update, *updates_before_);
  if (range.measures) {
    range.measures->measure(range.update, *kernels_, *stream_);
    range.update.scales = range.measures->scales();
  }
  kernels_->update(range.update, *stream_);
}

const PushFacts& ServerSession::facts(int slot, int worker, int64_t clock) const {
  const StepFacts& its = nth(facts_, slot * terms_.workers + worker);
  ensure(its.clock == clock, "what is applied is complete");
  return its.facts;
}

void ServerSession::count(const PushFacts& facts) {
  verdict_.count += facts.count;
  verdict_.finite = std::min(verdict_.finite, facts.finite);
  // What changes nothing spoils no mean either.
  if (facts.finite == 0) return;
  ++totals_.pushes;
  totals_.loss_sum += facts.loss_sum;
  totals_.count += facts.count;
  totals_.correct += facts.correct;
  totals_.norm_sum += facts.gradient_norm;
}

}  // namespace lockstep::run
