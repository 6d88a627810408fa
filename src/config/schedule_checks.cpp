#include <fmt/format.h>

#include "base/text.h"
#include "config/schema.h"

// The learning rate's schedule: what contradicts itself, and its plain options.

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
static_assert(int{schema::StableDecay::LINEAR} == static_cast<int>(optim::DecayShape::linear));
static_assert(int{schema::StableDecay::COSINE} == static_cast<int>(optim::DecayShape::cosine));
static_assert(int{schema::StableDecay::ONE_MINUS_SQRT} ==
              static_cast<int>(optim::DecayShape::one_minus_sqrt));

const std::string kPath = "optimizer.schedule.";

void check_minimum(const schema::Optimizer& optimizer, const Document& document) {
  const auto& schedule = optimizer.schedule();
  const auto check = [&](const char* kind, double minimum) {
    if (minimum > optimizer.learning_rate())
      document.refuse(
          fmt::format("{}{}.minimum", kPath, kind),
          fmt::format("is {}, above optimizer.learning_rate = {}, from which the rate falls to it; lower it",
                      exact(minimum), exact(optimizer.learning_rate())));
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
    if (i > 0 && points.point(i).at() <= points.point(i - 1).at())
      document.refuse(path, fmt::format("points ascend, but {} follows {}", exact(points.point(i).at()),
                                        exact(points.point(i - 1).at())));
  }
}

void check_one_cycle(const schema::OneCycle& cycle, const Document& document) {
  if (cycle.anneal() == schema::Schedule::HOLD)
    document.refuse(kPath + "one_cycle.anneal", "expected COSINE or LINEAR, found HOLD");
  if (cycle.three_phase() && cycle.pct_start() > 0.5)
    document.refuse(kPath + "one_cycle.pct_start",
                    fmt::format("is {}, but with three_phase the rate falls in as many steps as it rises, "
                                "which together are at most all; use at most 0.5",
                                exact(cycle.pct_start())));
}

}  // namespace

void check_schedule(const schema::Optimizer& optimizer, const Document& document) {
  const auto& schedule = optimizer.schedule();
  check_minimum(optimizer, document);
  if (schedule.has_step()) check_step(schedule.step(), document);
  if (schedule.has_points()) check_points(schedule.points(), document);
  if (schedule.has_one_cycle()) check_one_cycle(schedule.one_cycle(), document);
  if (schedule.warmup_steps() > 0 && (schedule.has_one_cycle() || schedule.has_points()))
    document.refuse(kPath + "warmup_steps",
                    fmt::format("{} says how the rate begins; remove warmup_steps",
                                schedule.has_points() ? "points (its first ones)" : "one_cycle (pct_start)"));
}

optim::ScheduleOptions convert_schedule(const schema::Schedule& schedule) {
  optim::ScheduleOptions options{.warmup_steps = schedule.warmup_steps()};
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
