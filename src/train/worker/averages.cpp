#include "train/worker/averages.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/ensure.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

std::vector<float> copy_of(const Worker& worker, const HeldParameter& held) {
  std::vector<float> values(static_cast<size_t>(held.part.count()));
  std::memcpy(values.data(), worker.window().read(held.data, held.size_bytes()),
              static_cast<size_t>(held.size_bytes()));
  return values;
}

/// What of `to` is among values of a part.
void write(const Worker& worker, const HeldParameter& to, const std::vector<float>& values,
           const tensor::Part& part) {
  worker.window().write(to.data, to.size_bytes(), [&](void* place) {
    tensor::copy_common(place, to.part, values.data(), part, sizeof(float));
  });
}

}  // namespace

void begin_averages(Worker& worker) {
  for (const HeldParameter& held : worker.held_parameters()) {
    if (!worker.compiled().graph().parameter(held.parameter).has_state()) continue;
    const HeldParameter average = held_average(worker, held.parameter);
    if (average.part.empty()) continue;
    ensure(held.part.contains(average.part), "a rank holds the parameters whose averages it has");
    write(worker, average, copy_of(worker, held), held.part);
  }
}

AveragedParameters::AveragedParameters(Worker& worker, comm::Communicator& world) : worker_(worker) {
  const auto& graph = worker.compiled().graph();
  const auto held = worker.held_parameters();
  for (int p = 0; p < static_cast<int>(graph.parameters.size()); ++p) {
    if (!graph.parameter(p).has_state()) continue;
    const std::vector<float> average = gather_average(worker, world, p);
    const auto here = std::ranges::find(held, p, &HeldParameter::parameter);
    // Servers update what they hold, and evaluate nothing.
    if (!worker.is_worker() || here == held.end()) continue;
    kept_.push_back({*here, copy_of(worker, *here)});
    write(worker, *here, average, tensor::Part::range(0, std::ssize(average)));
  }
}

AveragedParameters::~AveragedParameters() {
  try {
    restore();
  } catch (const std::exception&) {
    // The device has failed, which is what the evaluation is about to say.
  }
}

void AveragedParameters::restore() {
  for (const Kept& kept : kept_) write(worker_, kept.held, kept.values, kept.held.part);
  kept_.clear();
}

}  // namespace lockstep::train
