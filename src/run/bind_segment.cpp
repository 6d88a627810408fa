#include "base/index.h"
#include "program/segment_binding.h"
#include "run/bind.h"

namespace lockstep::run {

Action bind_segment(const Binding& binding) {
  auto calls = program::bind_segment(binding, binding.context().code);
  const int64_t first_sample = nth(binding.context().first_samples, binding.instruction().micro_batch);
  std::vector<ActionPart> parts;
  for (const auto& call : calls) parts.push_back({call.node, call.phase});
  return {
      .start =
          [calls = std::move(calls), first_sample, observer = binding.observer(), index = binding.index()](
              device::Stream& stream, const StepInputs&, const std::function<void()>& between) {
            for (const auto& call : calls) {
              observe(observer, stream, index, &call, [&] { call.run(stream, first_sample); });
              between();
            }
          },
      .parts = std::move(parts)};
}

}  // namespace lockstep::run
