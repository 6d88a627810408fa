#include "train/worker/averages.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/ensure.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

size_t size_bytes_of(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

std::vector<float> copy_of(const Worker& worker, const HeldParameter& held) {
  std::vector<float> values(static_cast<size_t>(held.count));
  std::memcpy(values.data(), worker.window().read(held.data, 4 * held.count), size_bytes_of(held.count));
  return values;
}

void write(const Worker& worker, const HeldParameter& to, const float* values) {
  worker.window().write(to.data, 4 * to.count,
                        [&](void* place) { std::memcpy(place, values, size_bytes_of(to.count)); });
}

}  // namespace

void begin_averages(Worker& worker) {
  for (const HeldParameter& held : worker.held_parameters()) {
    if (!worker.compiled().graph().parameter(held.parameter).has_state()) continue;
    const HeldParameter average = held_average(worker, held.parameter);
    if (average.count == 0) continue;
    ensure(held.first <= average.first && average.first + average.count <= held.first + held.count,
           "a rank holds the parameters whose averages it has");
    write(worker, average, copy_of(worker, held).data() + (average.first - held.first));
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
    write(worker, *here, average.data() + here->first);
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
  for (const Kept& kept : kept_) write(worker_, kept.held, kept.values.data());
  kept_.clear();
}

}  // namespace lockstep::train
