#include "step/step_kernels.h"

#include <algorithm>

#include "step/cpu/vector_sums.h"
#include "tensor/convert.h"

namespace lockstep {
namespace {

class CpuStepKernels : public StepKernels {
 public:
  void add(float* destination, const float* source, int64_t count, Stream& stream) override {
    stream.launch([=] { add_into(destination, source, count); });
  }

  void cast(void* to, DType to_type, const void* from, DType from_type, int64_t count, Stream& stream) override {
    stream.launch([=] { convert(to, to_type, from, from_type, count); });
  }

  void agree(const AgreementCall& call, Stream& stream) override {
    stream.launch([&call] { fold_agreement(call.records, call.block_bytes, call.ranks, *call.verdict); });
  }

  void norm(const NormCall& call, Stream& stream) override {
    stream.launch([&call] {
      for (const auto& piece : call.pieces)
        for (int64_t begin = 0, chunk = piece.first_chunk; begin < piece.count; begin += kNormChunk, ++chunk)
          call.sums[chunk] = sum_of_squares(piece.data + begin, std::min(kNormChunk, piece.count - begin));
      double weights = 0, statistics = 0;
      for (int64_t chunk = 0; chunk < call.chunks; ++chunk) (chunk < call.weight_chunks ? weights : statistics) += call.sums[chunk];
      conclude_norm(weights, statistics, call.static_count, call.clip_norm, *call.constants, *call.verdict);
    });
  }

  void update(const UpdateCall& call, Stream& stream) override {
    if (call.predicated && call.verdict->finite == 0) return;
    for (const auto& piece : call.pieces) {
      if (piece.is_statistic) {
        update_statistic(call.parameters + piece.offset, call.gradients + piece.offset, piece.count, piece.momentum,
                         call.statistic_scale, stream);
        continue;
      }
      UpdateArguments arguments{.parameters = call.parameters + piece.offset, .gradients = call.gradients + piece.offset,
                                .count = piece.count, .decay = piece.decay,
                                .gradient_scale = update_scale(*call.verdict, *call.constants, call.static_count, call.whole_step)};
      for (int slot = 0; slot < state_slots(call.optimizer); ++slot) arguments.state[slot] = call.state[slot] + piece.offset;
      lockstep::update(call.optimizer, arguments, *call.constants, stream);
    }
  }
};

}  // namespace

std::unique_ptr<StepKernels> make_cpu_step_kernels() { return std::make_unique<CpuStepKernels>(); }

std::unique_ptr<StepKernels> make_step_kernels(DeviceKind device) {
  return device == DeviceKind::cuda ? make_gpu_step_kernels() : make_cpu_step_kernels();
}

}  // namespace lockstep
