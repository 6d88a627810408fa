#include "train/worker/serving.h"

#include <fmt/format.h>
#include <sched.h>

#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/error.h"
#include "train/worker/worker.h"

namespace lockstep::train {
namespace {

std::vector<int> ranks_from(int first, int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

int first_of(const program::Program& program, program::InstructionKind kind) {
  for (int i = 0; i < static_cast<int>(program.instructions.size()); ++i)
    if (program.instruction(i).kind == kind) return i;
  return 0;
}

}  // namespace

Serving::Serving(comm::Communicator& world, const compile::CompiledRun& compiled,
                 const compile::CompiledRun::RankPrograms& programs, const run::ExecutionContext& context,
                 ServingOptions options)
    : options_(std::move(options)),
      has_replica_(compiled.placement().is_worker(world.rank())),
      first_pull_(first_of(programs.step, program::InstructionKind::pull)),
      first_serve_(first_of(programs.serve, program::InstructionKind::serve)),
      terms_(compiled.session_terms()),
      rank_(world.rank()),
      to_servers_(world.open_port()),
      to_workers_(world.open_port()) {
  const run::SessionPorts ports{*to_servers_, *to_workers_};
  const layout::RankRange& servers = compiled.placement().owners();
  if (has_replica_) worker_.emplace(ports, ranks_from(servers.first, servers.count), terms_);
  if (servers.contains(world.rank()))
    server_ = std::make_unique<run::ServerSession>(
        ports, ranks_from(0, terms_.workers), world.rank() - servers.first, terms_, programs.serve, context);
}

void Serving::begin(const Inputs& inputs) {
  const int64_t steps = inputs.steps * updates_per_step();
  if (server_)
    server_->begin({.steps = steps,
                    .constants = inputs.constants,
                    .stop_requested = inputs.stop_requested,
                    .before_update = [this, first = inputs.first_step](int64_t updates) {
                      const int64_t step = first + updates / updates_per_step();
                      if (!has_replica_) report(control::Activity::compute);
                      if (!has_replica_ && options_.progress != nullptr) options_.progress->set_step(step);
                      if (options_.before_update) options_.before_update(step, first_serve_);
                    }});
  if (worker_) worker_->begin(steps);
}

std::optional<run::Grant> Serving::next_step() {
  if (options_.progress != nullptr)
    options_.progress->enter(control::Progress::kMainSlot, control::Activity::waiting, kStepProgram,
                             first_pull_);
  const auto began = Clock::now();
  return worker_->next_step([&] { rest(began, server_ && server_->advance()); });
}

void Serving::finish() {
  if (!server_) return;
  report(control::Activity::waiting);
  auto began = Clock::now();
  while (!server_->is_over()) {
    const bool moved = server_->advance();
    if (moved) {
      began = Clock::now();
      report(control::Activity::waiting);
    }
    rest(began, moved);
  }
}

void Serving::alongside() {
  if (worker_) worker_->progress();
  if (server_) server_->advance();
}

/// Gives up the core, as a rank that waits for others beside it should.
void Serving::rest(Clock::time_point began, bool moved) {
  if (moved) return;
  const auto waited = Clock::now() - began;
  if (options_.timeout && waited > *options_.timeout)
    throw CommError(
        fmt::format("rank {} has waited {:.1f} s for {}; look at the other ranks' messages for the one that "
                    "stopped",
                    rank_, std::chrono::duration<double>(waited).count(),
                    has_replica_ ? "a server to let its next step begin" : "workers"),
        ExitCode::hang);
  constexpr std::chrono::microseconds kAwake{200};  // what comes that soon is worth a core
  if (has_replica_ || waited < kAwake) {
    sched_yield();
    return;
  }
  std::this_thread::sleep_for(std::min<Clock::duration>(std::chrono::milliseconds(1), waited / 20));
}

void Serving::abort(std::string_view reason) noexcept {
  to_servers_->abort(reason);
  to_workers_->abort(reason);
}

comm::TransferredBytes Serving::transferred() const {
  comm::TransferredBytes bytes = to_servers_->transferred();
  bytes.sent += to_workers_->transferred().sent;
  bytes.received += to_workers_->transferred().received;
  return bytes;
}

void Serving::report(control::Activity activity) const {
  if (options_.progress != nullptr)
    options_.progress->enter(control::Progress::kMainSlot, activity, kServeProgram, first_serve_);
}

}  // namespace lockstep::train
