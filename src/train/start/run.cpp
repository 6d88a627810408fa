#include "train/start/run.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "train/faults/position.h"
#include "train/start/on_all_ranks.h"
#include "train/start/run_parts.h"
#include "train/worker/model_state.h"

namespace lockstep::train {

template <class Action>
auto Run::guarded(Phase phase, const Action& action) {
  // From here on the time is the caller's.
  struct Outside {
    World& world;
    ~Outside() { enter_phase(&world.control().progress(), Phase::outside); }
  };
  enter_phase(&world_.control().progress(), phase);
  const Outside outside{world_};
  try {
    return action();
  } catch (const comm::CollectiveError& error) {
    // All ranks unwind alike, and wait for the save that is under way.
    if (parts_) parts_->note_failure(error);
    end();
    throw;
  } catch (const std::exception& error) {
    // What is unwound here would wait for a disk while the others wait for this rank.
    if (world_.size() > 1) {
      world_.tell_failure(error);
      parts_->last_words();
      world_.fail(error);
    }
    if (parts_) parts_->note_failure(error);
    end();
    throw;
  }
}

void Run::end() {
  enter_phase(&world_.control().progress(), Phase::settle);
  parts_.reset();
}

Run::Run(World& world, RunOptions options)
    : world_(world), parts_(std::make_unique<Parts>(world, std::move(options))) {
  guarded(Phase::prepare, [&] { parts_->prepare(); });
}

Run::~Run() {
  if (!parts_) return;
  // Where an error unwinds, others may be gone, and who waits for them does so without end.
  if (std::uncaught_exceptions() == exceptions_) leave();
  end();
  enter_phase(&world_.control().progress(), Phase::outside);
}

/// Executors are not destroyed in the middle of a step.
void Run::leave() noexcept {
  try {
    enter_phase(&world_.control().progress(), Phase::between_steps);
    parts_->worker().finish_step();
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
  enter_phase(&world_.control().progress(), Phase::settle);
  parts_->trainer().abandon();
}

Run::Parts& Run::parts() const {
  require(parts_ != nullptr, "this training is over: it has ended with an error");
  return *parts_;
}

bool Run::advance() {
  return guarded(Phase::between_steps, [&parts = parts()] { return parts.trainer().advance(); });
}

std::optional<EvaluationRecord> Run::evaluate() {
  return guarded(Phase::between_steps, [&parts = parts()] { return parts.trainer().evaluate_now(); });
}

void Run::save() {
  guarded(Phase::between_steps, [&parts = parts()] { parts.trainer().save_now(); });
}

RunResult Run::finish() {
  return guarded(Phase::between_steps, [&parts = parts()] { return parts.finish(); });
}

int Run::find_parameter(const std::string& name, const std::function<void(int parameter)>& check) const {
  const auto& parameters = worker().compiled().graph().parameters;
  int found = -1;
  on_all_ranks(world_, [&] {
    std::vector<std::string> names;
    for (size_t p = 0; p < parameters.size(); ++p) {
      names.push_back(parameters[p].name);
      if (names.back() == name) found = static_cast<int>(p);
    }
    if (found < 0)
      throw ConfigError(fmt::format("the model has no parameter '{}'{}; it has: {}", name,
                                    did_you_mean(name, names), join(names, ", ")));
    if (check) check(found);
  });
  return found;
}

std::vector<float> Run::parameter(const std::string& name) {
  const int parameter = find_parameter(name);
  return guarded(Phase::between_steps, [&, &parts = parts()] {
    return gather_parameter(parts.worker(), world_.communicator(), parameter);
  });
}

void Run::set_parameter(const std::string& name, std::span<const float> values) {
  const int parameter = find_parameter(name, [&](int p) {
    const int64_t count = worker().compiled().graph().parameter(p).spec.shape.count();
    if (world_.rank() == 0 && static_cast<int64_t>(values.size()) != count)
      throw ConfigError(fmt::format("parameter '{}' has {} values, found {}", name, count, values.size()));
  });
  guarded(Phase::between_steps, [&, &parts = parts()] {
    replace_parameter(parts.worker(), world_.communicator(), parameter, values);
    parts.trainer().parameters_changed();
  });
}

const Worker& Run::worker() const { return parts().worker(); }

int64_t Run::steps() const { return parts().trainer().next_step(); }

bool Run::stopped() const { return parts().trainer().stopped(); }

RunResult train_run(World& world, const RunOptions& options) {
  Run run(world, options);
  while (run.advance()) {
  }
  return run.finish();
}

}  // namespace lockstep::train
