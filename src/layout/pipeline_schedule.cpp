#include "layout/pipeline_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/ensure.h"
#include "lockstep/error.h"

namespace lockstep::layout {
namespace {

using Kind = PipelineUnit::Kind;

/// Beyond this a step is refused in any case: each pair of a micro-batch and a chunk takes several
/// instructions.
constexpr int64_t kMostPairs = 1'000'000;

/// The nearest numbers of micro-batches that `stages` divides, for people.
std::string multiples_around(int micro_batches, int stages) {
  const int below = micro_batches / stages * stages;
  return below > 0 ? fmt::format("{} or {}", below, below + stages) : fmt::to_string(stages);
}

void check_shape(const PipelineShape& shape, int stage) {
  ensure(shape.stages >= 1 && shape.micro_batches >= 1 && shape.chunks >= 1 && stage >= 0 &&
             stage < shape.stages,
         "a pipeline has stages, micro-batches and chunks, and a schedule is of one of its stages");
  ensure(shape.chunks == 1 || shape.schedule == PipelineSchedule::interleaved,
         "only schedule=interleaved has more than one chunk on a rank");
  if (!takes(shape))
    throw ConfigError(fmt::format(
        "schedule=interleaved takes a multiple of pp micro-batches, but {} = {} x {} stages + {}; set "
        "trainer.micro_batch so that there are {}, or use schedule=1f1b, which takes any number",
        shape.micro_batches, shape.micro_batches / shape.stages, shape.stages,
        shape.micro_batches % shape.stages, multiples_around(shape.micro_batches, shape.stages)));
  const int64_t units = int64_t{shape.micro_batches} * shape.chunks;
  if (units > kMostPairs)
    throw ConfigError(
        fmt::format("{} micro-batches of {} chunks are {} of each for a stage to run; {} are the most",
                    shape.micro_batches, shape.chunks, units, kMostPairs));
}

/// Forwards that a stage runs before a forward and a backward take turns.
///
/// 1F1B, ZB-H1: while the first micro-batch goes on to the last stage, which alone takes turns at once.
/// Interleaved: the first backward is of the last chunk, so the first `stages` micro-batches pass all chunks
/// before it; and until it comes, micro-batch 0 goes to the last stage and back, 2 (stages - stage - 1)
/// stages. Half as many forwards would fill that time if transfers took none; with one for each of those
/// stages, there is something to run while what is needed next is still on its way.
int warm_up(const PipelineShape& shape, int stage) {
  const int units = shape.micro_batches * shape.chunks, to_last_stage = shape.stages - stage - 1;
  switch (shape.schedule) {
    case PipelineSchedule::gpipe:
      return units;
    case PipelineSchedule::one_f_one_b:
    case PipelineSchedule::zero_bubble:
      return std::min(units, to_last_stage);
    case PipelineSchedule::interleaved:
      return std::min(units, 2 * to_last_stage + (shape.chunks - 1) * shape.stages);
  }
  throw InternalError("a pipeline schedule without a warm-up");
}

/// Forward number `index` of a stage: micro-batches pass in groups of as many as there are stages, each group
/// through one chunk after the other. So a chunk is through with a group just when its first micro-batch
/// comes back from the last stage for the next chunk.
PipelineUnit nth_forward(const PipelineShape& shape, int index) {
  const int group = index / (shape.stages * shape.chunks), within = index % (shape.stages * shape.chunks);
  return {Kind::forward, group * shape.stages + within % shape.stages, within / shape.stages};
}

/// Likewise, chunks from the last to the first.
PipelineUnit nth_backward(const PipelineShape& shape, Kind kind, int index) {
  PipelineUnit unit = nth_forward(shape, index);
  return {kind, unit.micro_batch, shape.chunks - 1 - unit.chunk};
}

/// ZB-H1: stage r lags r micro-batches behind with gradients of weights. It holds no more activations by that
/// than stage 0 does, since it has r fewer micro-batches under way, and the lag is what fills its last steps.
void add_split_backward(const PipelineShape& shape, int stage, int index, std::vector<PipelineUnit>& units) {
  units.push_back(nth_backward(shape, Kind::backward_input, index));
  if (index >= stage) units.push_back(nth_backward(shape, Kind::backward_weight, index - stage));
}

void add_lagging_weights(const PipelineShape& shape, int stage, std::vector<PipelineUnit>& units) {
  for (int index = std::max(0, shape.micro_batches - stage); index < shape.micro_batches; ++index)
    units.push_back(nth_backward(shape, Kind::backward_weight, index));
}

bool needs_activations(Kind kind) { return kind == Kind::backward || kind == Kind::backward_input; }

std::vector<PipelineUnit> with_recomputes(const std::vector<PipelineUnit>& units) {
  std::vector<PipelineUnit> result;
  for (const PipelineUnit& unit : units) {
    const PipelineUnit own_forward{Kind::forward, unit.micro_batch, unit.chunk};
    if (needs_activations(unit.kind) && result.back() != own_forward)
      result.push_back({Kind::recompute, unit.micro_batch, unit.chunk});
    result.push_back(unit);
  }
  return result;
}

}  // namespace

PipelineShape pipeline_shape(const Layout& layout, int micro_batches) {
  const bool interleaved = layout.schedule == PipelineSchedule::interleaved;
  return {.schedule = layout.schedule,
          .stages = layout.pp,
          .micro_batches = micro_batches,
          .chunks = interleaved ? layout.chunks : 1,
          .recomputes = layout.recompute == Recompute::full};
}

bool takes(const PipelineShape& shape) {
  return shape.schedule != PipelineSchedule::interleaved || shape.micro_batches % shape.stages == 0;
}

std::vector<PipelineUnit> pipeline_schedule(const PipelineShape& shape, int stage) {
  check_shape(shape, stage);
  const bool splits = shape.schedule == PipelineSchedule::zero_bubble;
  const int count = shape.micro_batches * shape.chunks, warm = warm_up(shape, stage);
  std::vector<PipelineUnit> units;
  for (int i = 0; i < count + warm; ++i) {
    if (i < count) units.push_back(nth_forward(shape, i));
    if (i < warm) continue;
    if (splits)
      add_split_backward(shape, stage, i - warm, units);
    else
      units.push_back(nth_backward(shape, Kind::backward, i - warm));
  }
  if (splits) add_lagging_weights(shape, stage, units);
  return shape.recomputes ? with_recomputes(units) : units;
}

}  // namespace lockstep::layout
