#include <fmt/format.h>

#include "base/text.h"
#include "config/schema.h"

// The learning rate and its schedule: what contradicts itself, and their plain options.

namespace lockstep::config {
namespace {

using optim::ScheduleKind;

// Enumerators are converted by number.
static_assert(int{schema::Schedule::STEPS} == static_cast<int>(optim::ScheduleUnit::steps));
static_assert(int{schema::Schedule::EPOCHS} == static_cast<int>(optim::ScheduleUnit::epochs));
static_assert(int{schema::Schedule::SAMPLES} == static_cast<int>(optim::ScheduleUnit::samples));
static_assert(int{schema::Schedule::SHARE} == static_cast<int>(optim::ScheduleUnit::share));
static_assert(int{schema::Schedule::LINEAR} == static_cast<int>(optim::Interpolation::linear));
static_assert(int{schema::Schedule::COSINE} == static_cast<int>(optim::Interpolation::cosine));
static_assert(int{schema::Schedule::HOLD} == static_cast<int>(optim::Interpolation::hold));
static_assert(int{schema::Schedule::EXPONENTIAL} == static_cast<int>(optim::Interpolation::exponential));
static_assert(int{schema::OneCycle::LINEAR} == static_cast<int>(optim::Interpolation::linear));
static_assert(int{schema::OneCycle::COSINE} == static_cast<int>(optim::Interpolation::cosine));
static_assert(int{schema::ScaleWithBatch::LINEAR} == static_cast<int>(optim::ScalingRule::linear));
static_assert(int{schema::ScaleWithBatch::SQUARE_ROOT} == static_cast<int>(optim::ScalingRule::square_root));
static_assert(int{schema::StableDecay::LINEAR} == static_cast<int>(optim::DecayShape::linear));
static_assert(int{schema::StableDecay::COSINE} == static_cast<int>(optim::DecayShape::cosine));
static_assert(int{schema::StableDecay::ONE_MINUS_SQRT} ==
              static_cast<int>(optim::DecayShape::one_minus_sqrt));

const std::string kPath = "optimizer.schedule.";

void check_minimum(const schema::Optimizer& optimizer, double peak, const Document& document) {
  const auto& schedule = optimizer.schedule();
  const auto check = [&](const char* kind, double minimum) {
    if (minimum > peak)
      document.refuse(
          fmt::format("{}{}.minimum", kPath, kind),
          fmt::format(
              "is {}, above optimizer.learning_rate = {}{}, from which the rate falls to it; lower it",
              exact(minimum), exact(peak),
              optimizer.has_scale_with_batch() ? " (as scale_with_batch scales it)" : ""));
  };
  if (schedule.has_cosine()) check("cosine", schedule.cosine().minimum());
  if (schedule.has_linear()) check("linear", schedule.linear().minimum());
  if (schedule.has_polynomial()) check("polynomial", schedule.polynomial().minimum());
  if (schedule.has_stable_decay()) check("stable_decay", schedule.stable_decay().minimum());
}

void check_share(schema::Schedule::Unit unit, double value, const std::string& path,
                 const Document& document) {
  if (unit == schema::Schedule::SHARE && value > 1)
    document.refuse(path, fmt::format("is a share of the training, from 0 to 1, found {}", exact(value)));
}

void check_step(const schema::StepDecay& step, const Document& document) {
  const std::string milestones = kPath + "step.milestones";
  if ((step.every() > 0) == (step.milestones_size() > 0))
    document.refuse(kPath + "step", step.every() > 0
                                        ? "has both every and milestones; keep one of them"
                                        : "needs every, such as 1000, or milestones, such as [1000, 2000]");
  check_share(step.unit(), step.every(), kPath + "step.every", document);
  for (int i = 0; i < step.milestones_size(); ++i) {
    check_share(step.unit(), step.milestones(i), fmt::format("{}[{}]", milestones, i), document);
    if (i > 0 && step.milestones(i) <= step.milestones(i - 1))
      document.refuse(fmt::format("{}[{}]", milestones, i),
                      fmt::format("milestones ascend, but {} follows {}", exact(step.milestones(i)),
                                  exact(step.milestones(i - 1))));
  }
}

void check_points(const schema::Points& points, const Document& document) {
  for (int i = 0; i < points.point_size(); ++i) {
    const std::string path = fmt::format("{}points.point[{}].at", kPath, i);
    check_share(points.unit(), points.point(i).at(), path, document);
    if (points.interpolation() == schema::Schedule::EXPONENTIAL && points.point(i).factor() == 0)
      document.refuse(fmt::format("{}points.point[{}].factor", kPath, i),
                      "is 0, from or to which no factor leads; with interpolation: EXPONENTIAL use a small "
                      "one, such as 0.0001");
    if (i > 0 && points.point(i).at() <= points.point(i - 1).at())
      document.refuse(path, fmt::format("points ascend, but {} follows {}", exact(points.point(i).at()),
                                        exact(points.point(i - 1).at())));
  }
}

void check_one_cycle(const schema::OneCycle& cycle, const Document& document) {
  if (cycle.three_phase() && cycle.pct_start() > 0.5)
    document.refuse(kPath + "one_cycle.pct_start",
                    fmt::format("is {}, but with three_phase the rate falls in as many steps as it rises, "
                                "which together are at most all; use at most 0.5",
                                exact(cycle.pct_start())));
}

/// A schedule has one warm-up at most.
void check_warmup(const schema::Optimizer& optimizer, const Document& document) {
  const auto& schedule = optimizer.schedule();
  const auto& scaling = optimizer.scale_with_batch();
  const bool scales = scaling.warmup_case() != schema::ScaleWithBatch::WARMUP_NOT_SET;
  const std::string of_scaling = scaling.has_warmup_steps() ? "optimizer.scale_with_batch.warmup_steps"
                                                            : "optimizer.scale_with_batch.warmup_epochs";
  if (scales && schedule.warmup_steps() > 0)
    document.refuse(of_scaling, "schedule.warmup_steps states a warm-up, too; remove one of them");
  if ((scales || schedule.warmup_steps() > 0) && (schedule.has_one_cycle() || schedule.has_points()))
    document.refuse(scales ? of_scaling : kPath + "warmup_steps",
                    fmt::format("{} says how the rate begins; remove the warm-up",
                                schedule.has_points() ? "points (its first ones)" : "one_cycle (pct_start)"));
}

}  // namespace

std::optional<optim::BatchScaling> batch_scaling(const schema::Optimizer& optimizer) {
  if (!optimizer.has_scale_with_batch()) return {};
  return optim::BatchScaling{.learning_rate = optimizer.learning_rate(),
                             .from = optimizer.scale_with_batch().from(),
                             .rule = static_cast<optim::ScalingRule>(optimizer.scale_with_batch().rule())};
}

double peak_rate(const schema::Optimizer& optimizer, int64_t global_batch) {
  const auto scaling = batch_scaling(optimizer);
  return scaling ? scaling->rate_for(global_batch) : optimizer.learning_rate();
}

bool warms_up_to_batch(const schema::Optimizer& optimizer, int64_t global_batch) {
  const auto& scaling = optimizer.scale_with_batch();
  return scaling.warmup_case() != schema::ScaleWithBatch::WARMUP_NOT_SET && global_batch > scaling.from();
}

void check_schedule(const schema::Optimizer& optimizer, int64_t global_batch, const Document& document) {
  const auto& schedule = optimizer.schedule();
  check_minimum(optimizer, peak_rate(optimizer, global_batch), document);
  if (schedule.has_step()) check_step(schedule.step(), document);
  if (schedule.has_points()) check_points(schedule.points(), document);
  if (schedule.has_one_cycle()) check_one_cycle(schedule.one_cycle(), document);
  check_warmup(optimizer, document);
}

optim::ScheduleOptions convert_schedule(const schema::Optimizer& optimizer, int64_t global_batch) {
  const auto& schedule = optimizer.schedule();
  optim::ScheduleOptions options{.warmup_steps = schedule.warmup_steps()};
  if (warms_up_to_batch(optimizer, global_batch)) {
    const auto& scaling = optimizer.scale_with_batch();
    options.warmup_from = optimizer.learning_rate();
    options.warmup_epochs = scaling.warmup_epochs();
    options.warmup_steps = scaling.warmup_steps();
  }
  if (schedule.has_cosine()) {
    options.kind = ScheduleKind::cosine;
    options.minimum = schedule.cosine().minimum();
  } else if (schedule.has_step()) {
    const auto& step = schedule.step();
    options.kind = ScheduleKind::step;
    options.gamma = step.gamma();
    options.every = step.every();
    options.milestones = {step.milestones().begin(), step.milestones().end()};
    options.unit = static_cast<optim::ScheduleUnit>(step.unit());
  } else if (schedule.has_linear()) {
    options.kind = ScheduleKind::linear;
    options.minimum = schedule.linear().minimum();
  } else if (schedule.has_polynomial()) {
    options.kind = ScheduleKind::polynomial;
    options.minimum = schedule.polynomial().minimum();
    options.power = schedule.polynomial().power();
  } else if (schedule.has_one_cycle()) {
    const auto& cycle = schedule.one_cycle();
    options.kind = ScheduleKind::one_cycle;
    options.interpolation = static_cast<optim::Interpolation>(cycle.anneal());
    options.rising_share = cycle.pct_start();
    options.first_divisor = cycle.div_factor();
    options.last_divisor = cycle.final_div_factor();
    options.three_phase = cycle.three_phase();
  } else if (schedule.has_stable_decay()) {
    const auto& decay = schedule.stable_decay();
    options.kind = ScheduleKind::stable_decay;
    options.minimum = decay.minimum();
    options.decay_share = decay.decay_share();
    options.shape = static_cast<optim::DecayShape>(decay.shape());
  } else if (schedule.has_points()) {
    options.kind = ScheduleKind::points;
    options.unit = static_cast<optim::ScheduleUnit>(schedule.points().unit());
    options.interpolation = static_cast<optim::Interpolation>(schedule.points().interpolation());
    for (const auto& point : schedule.points().point())
      options.points.push_back({point.at(), point.factor()});
  }
  return options;
}

}  // namespace lockstep::config
