#include "run/serve/attendance.h"

#include "base/ensure.h"
#include "base/index.h"

namespace lockstep::run {

Attendance::Attendance(int workers, int ranges)
    : ranges_(ranges),
      present_(workers),
      entries_(static_cast<size_t>(workers)),
      pushed_(static_cast<size_t>(workers) * static_cast<size_t>(ranges)) {}

Attendance::Entry& Attendance::entry(int worker) {
  ensure(worker >= 0 && static_cast<size_t>(worker) < entries_.size(), "a message is of a listed worker");
  return nth(entries_, worker);
}

void Attendance::ask(int worker, int64_t step) {
  Entry& its = entry(worker);
  ensure(its.where == Where::between_steps, "a worker asks after it has pushed every range");
  ensure(step == its.steps, "a worker asks for its steps in order");
  its.where = Where::asking;
}

void Attendance::answer(int worker) {
  Entry& its = entry(worker);
  ensure(its.where == Where::asking, "who is answered has asked");
  its.where = Where::in_step;
  its.missing = ranges_;
  ++its.steps;
}

void Attendance::refuse(int worker) {
  ensure(asks(worker), "who is refused has asked");
  entry(worker).where = Where::refused;
}

void Attendance::push(int worker, int range, int64_t clock) {
  Entry& its = entry(worker);
  ensure(its.where == Where::in_step, "a worker pushes in a step that was answered");
  ensure(range >= 0 && range < ranges_, "a push is of a range of this server");
  int64_t& pushed = nth(pushed_, worker * ranges_ + range);
  ensure(clock == pushed && clock == its.steps - 1,
         "a range is pushed once in a step, and steps come in order");
  ++pushed;
  if (--its.missing == 0) its.where = Where::between_steps;
}

void Attendance::leave(int worker) {
  Entry& its = entry(worker);
  ensure(its.where == Where::between_steps || its.where == Where::refused,
         "a worker leaves once, after it has pushed every range");
  its.where = Where::gone;
  --present_;
}

bool Attendance::lose(int worker) {
  Entry& its = entry(worker);
  if (its.where == Where::gone) return false;
  its.where = Where::gone;
  --present_;
  return true;
}

bool Attendance::asks(int worker) const { return nth(entries_, worker).where == Where::asking; }

int64_t Attendance::steps(int worker) const { return nth(entries_, worker).steps; }

bool Attendance::is_in_step(int worker) const { return nth(entries_, worker).where == Where::in_step; }

bool Attendance::owes(int worker, int range) const {
  return is_in_step(worker) && nth(pushed_, worker * ranges_ + range) < steps(worker);
}

}  // namespace lockstep::run
