#include "train/worker/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/index.h"
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
      has_replica_(compiled.ownership().is_worker(world.rank())),
      first_pull_(first_of(programs.step, program::InstructionKind::pull)),
      first_serve_(first_of(programs.serve, program::InstructionKind::serve)),
      terms_(compiled.session_terms()),
      rank_(world.rank()),
      to_servers_(world.open_port()),
      to_workers_(world.open_port()),
      servers_(compiled.ownership().owners()),
      patience_(has_replica_ ? std::chrono::microseconds{0} : run::kLongestNap) {
  const run::SessionPorts ports{*to_servers_, *to_workers_};
  if (has_replica_) worker_.emplace(ports, ranks_from(servers_.first, servers_.count), terms_);
  if (servers_.contains(rank_))
    server_ =
        std::make_unique<run::ServerSession>(ports, ranks_from(0, terms_.workers), rank_ - servers_.first,
                                             terms_, programs.serve, context, options_.recorder);
  if (options_.company.muster != nullptr) losses_heard_ = options_.company.muster->lost_count();
}

void Serving::enter_section() {
  const Company& company = options_.company;
  if (company.muster == nullptr) return;
  std::vector<bool> expendable(static_cast<size_t>(company.members.back()) + 1, false);
  for (int worker = 1; worker < terms_.workers; ++worker)
    expendable[static_cast<size_t>(nth(company.members, worker))] = !servers_.contains(worker);
  company.muster->enter(std::move(expendable));
}

void Serving::hear_of_losses() {
  const Company& company = options_.company;
  if (company.muster == nullptr || company.muster->lost_count() == losses_heard_) return;
  const std::vector<int> lost = company.muster->lost();
  for (; losses_heard_ < static_cast<int>(lost.size()); ++losses_heard_) {
    const auto found = std::ranges::find(company.members, nth(lost, losses_heard_));
    if (server_ && found != company.members.end())
      server_->lost(static_cast<int>(found - company.members.begin()));
  }
}

std::vector<int> Serving::meet() {
  const Company& company = options_.company;
  std::vector<int> left = ranks_from(0, std::max(terms_.workers, servers_.end()));
  if (company.muster == nullptr) return left;
  report(control::Activity::waiting);
  company.muster->leave();
  patience_.begin();
  std::optional<std::vector<int>> members;
  for (; !members; members = company.muster->members()) {
    to_servers_->progress();
    to_workers_->progress();
    rest(false);
  }
  std::erase_if(left, [&](int rank) {
    return std::ranges::find(*members, nth(company.members, rank)) == members->end();
  });
  return left;
}

void Serving::begin(const Inputs& inputs) {
  const int64_t steps = inputs.steps * updates_per_step();
  if (server_)
    server_->begin({.steps = steps,
                    .constants = inputs.constants,
                    .stop_requested = inputs.stop_requested,
                    .before_update =
                        [this, first = inputs.first_step](int64_t updates) {
                          const int64_t step = first + updates / updates_per_step();
                          if (!has_replica_) report(control::Activity::compute);
                          if (!has_replica_ && options_.progress != nullptr)
                            options_.progress->set_step(step);
                          if (options_.before_update) options_.before_update(step, first_serve_);
                        },
                    .first_iteration = static_cast<uint64_t>(inputs.first_step * updates_per_step())});
  if (worker_) worker_->begin(steps);
  enter_section();
}

std::optional<run::Grant> Serving::next_step() {
  if (options_.progress != nullptr)
    options_.progress->enter(control::Progress::kMainSlot, control::Activity::waiting, kStepProgram,
                             first_pull_);
  patience_.begin();
  return worker_->next_step([&] {
    hear_of_losses();
    rest(server_ && server_->advance());
  });
}

void Serving::finish() {
  if (!server_) return;
  report(control::Activity::waiting);
  patience_.begin();
  while (!server_->is_over()) {
    hear_of_losses();
    const bool moved = server_->advance();
    if (moved) {
      patience_.begin();
      report(control::Activity::waiting);
    }
    rest(moved);
  }
}

bool Serving::alongside() {
  hear_of_losses();
  if (worker_) worker_->progress();
  return server_ && server_->advance();
}

/// Gives up the core, as a rank that waits for others beside it should.
void Serving::rest(bool moved) {
  if (moved) return;
  const auto waited = patience_.waited();
  if (options_.timeout && waited > *options_.timeout)
    throw CommError(
        fmt::format("rank {} has waited {:.1f} s for {}; look at the other ranks' messages for the one that "
                    "stopped",
                    rank_, std::chrono::duration<double>(waited).count(),
                    has_replica_ ? "a server to let its next step begin" : "workers"),
        ExitCode::hang);
  patience_.rest();
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
