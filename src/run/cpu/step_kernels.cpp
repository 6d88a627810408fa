#include "run/step_kernels.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/ranges.h"
#include "run/cpu/vector_sums.h"
#include "tensor/convert.h"

namespace lockstep::run {
namespace {

void add_into(void* destination, const void* source, DType dtype, int64_t count) {
  if (dtype == DType::float32)
    return run::add_into(static_cast<float*>(destination), static_cast<const float*>(source), count);
  constexpr int64_t kBlock = 1024;
  float sum[kBlock], other[kBlock];
  const int64_t width = size_of(dtype);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    auto* const to = static_cast<std::byte*>(destination) + begin * width;
    tensor::convert(sum, DType::float32, to, dtype, size);
    tensor::convert(other, DType::float32, static_cast<const std::byte*>(source) + begin * width, dtype,
                    size);
    run::add_into(sum, other, size);
    tensor::convert(to, dtype, sum, DType::float32, size);
  }
}

/// What a sum of squares of updates is over, of one chunk: each thread's own, kept from call to call.
float* proposed_updates() {
  static thread_local std::vector<float> updates(layout::kNormChunk);
  return updates.data();
}

/// Elements that a thread takes at once.
constexpr int64_t kRange = 64 << 10;

class CpuStepKernels : public StepKernels {
 public:
  CpuStepKernels(int threads, SumOrder order) : threads_(threads), as_gpus_(order == SumOrder::as_gpus) {}

  void add(void* destination, const void* source, DType dtype, int64_t count,
           device::Stream& stream) override {
    stream.launch([=, threads = threads_] {
      const int64_t width = size_of(dtype);
      for_ranges(count, kRange, threads, [&](int64_t begin, int64_t end) {
        add_into(static_cast<std::byte*>(destination) + begin * width,
                 static_cast<const std::byte*>(source) + begin * width, dtype, end - begin);
      });
    });
  }

  void cast(void* to, DType to_type, const void* from, DType from_type, int64_t count,
            device::Stream& stream) override {
    stream.launch([=, threads = threads_] {
      const int64_t to_width = size_of(to_type), from_width = size_of(from_type);
      for_ranges(count, kRange, threads, [&](int64_t begin, int64_t end) {
        tensor::convert(static_cast<std::byte*>(to) + begin * to_width, to_type,
                        static_cast<const std::byte*>(from) + begin * from_width, from_type, end - begin);
      });
    });
  }

  void round_with_feedback(void* to, DType to_type, const float* from, float* residuals, int64_t count,
                           device::Stream& stream) override {
    stream.launch([=, threads = threads_] {
      const int64_t width = size_of(to_type);
      for_ranges(count, kRange, threads, [&](int64_t begin, int64_t end) {
        tensor::round_with_feedback(static_cast<std::byte*>(to) + begin * width, to_type, from + begin,
                                    residuals + begin, end - begin);
      });
    });
  }

  void agree(const AgreementCall& call, device::Stream& stream) override {
    stream.launch([&call] {
      program::fold_agreement(call.records, call.block_bytes, call.ranks, call.compared, *call.verdict);
    });
  }

  void sum_squares(const NormCall& call, device::Stream& stream) override {
    stream.launch([&call, threads = threads_, sum = squares()] {
      for (const auto& piece : call.pieces)
        for_ranges(piece.count, layout::kNormChunk, threads, [&](int64_t begin, int64_t end) {
          call.sums[piece.first_chunk + begin / layout::kNormChunk] =
              piece.data == nullptr ? 0 : sum(piece.data + begin, end - begin);
        });
    });
  }

  void conclude_norm(const NormCall& call, device::Stream& stream) override {
    stream.launch([&call, as_gpus = as_gpus_] {
      const double weights = folded(call.sums, call.weight_chunks, as_gpus),
                   statistics =
                       folded(call.sums + call.weight_chunks, call.chunks - call.weight_chunks, as_gpus);
      lockstep::program::conclude_norm(weights, statistics, call.static_count, call.clip_norm,
                                       call.constants->kernels, *call.verdict);
    });
  }

  void propose(const ProposeCall& call, device::Stream& stream) override {
    stream.launch([&call, threads = threads_, sum = squares()] {
      const bool moves = !call.predicated || call.verdict->finite != 0;
      for (const auto& piece : call.pieces) {
        const optim::LambDirection formula(
            call.optimizer,
            {.rates = piece.rates,
             .gradient_scale = program::update_scale(*call.verdict, call.constants->kernels,
                                                     call.static_count, call.whole_step)},
            call.constants->update);
        for_ranges(piece.count, layout::kNormChunk, threads, [&](int64_t begin, int64_t end) {
          double& result = call.sums[piece.first_chunk + begin / layout::kNormChunk];
          if (piece.gradients == nullptr || !moves) {
            result = 0;
            return;
          }
          float* const updates = proposed_updates();
          optim::propose(formula, piece.parameters + begin, piece.gradients + begin, piece.state[0] + begin,
                         piece.state[1] + begin, updates, end - begin);
          result = sum(updates, end - begin);
        });
      }
    });
  }

  void ratios(const RatiosCall& call, device::Stream& stream) override {
    stream.launch([&call, as_gpus = as_gpus_] {
      const double gradient_scale =
          program::update_scale(*call.verdict, call.constants->kernels, call.static_count, call.whole_step);
      for (const auto& piece : call.pieces) {
        double sums[layout::kMeasuredCount] = {};
        for (int m = 0; m < layout::kMeasuredCount; ++m)
          if (call.sums[m] != nullptr)
            sums[m] = folded(call.sums[m] + piece.first_chunk, piece.chunks, as_gpus);
        call.scales[piece.parameter] = scale_from_sums(piece, call.optimizer, gradient_scale, sums);
      }
    });
  }

  void digest(const DigestCall& call, device::Stream& stream) override {
    stream.launch([&call] {
      for (const auto& piece : call.pieces)
        for (int64_t begin = 0, chunk = piece.first_chunk; begin < piece.count;
             begin += layout::kNormChunk, ++chunk)
          call.digests[chunk] =
              piece.data == nullptr
                  ? 0
                  : run::digest_of(piece.data + begin, std::min(layout::kNormChunk, piece.count - begin));
    });
  }

  void update(const UpdateCall& call, device::Stream& stream) override {
    if (call.predicated && call.verdict->finite == 0) return;
    for (const auto& piece : call.pieces) {
      if (piece.is_statistic) {
        optim::update_statistic(call.parameters + piece.offset, call.copy.from(piece.offset),
                                call.gradients + piece.offset, piece.count, piece.momentum,
                                call.statistic_scale, stream);
        continue;
      }
      optim::UpdateArguments arguments{
          .parameters = call.parameters + piece.offset,
          .copy = call.copy.from(piece.offset),
          .gradients = call.gradients + piece.offset,
          .count = piece.count,
          .rates = piece.rates,
          .gradient_scale = program::update_scale(*call.verdict, call.constants->kernels, call.static_count,
                                                  call.whole_step)};
      if (call.scales != nullptr) optim::apply_scale(call.optimizer, call.scales[piece.parameter], arguments);
      for (int slot = 0; slot < optim::state_slots(call.optimizer); ++slot)
        arguments.state[slot] = call.state[slot] + piece.offset;
      lockstep::optim::update(call.optimizer, arguments, call.constants->update, stream, threads_);
    }
    for (const auto& matrix : call.matrices) update_matrix(call, matrix, stream);
  }

 private:
  void update_matrix(const UpdateCall& call, const UpdateCall::Matrix& matrix, device::Stream& stream) {
    const auto& piece = matrix.piece;
    const int slots = optim::state_slots(call.optimizer);
    optim::UpdateArguments arguments{
        .parameters = matrix.direction,
        .gradients = call.gradients + piece.offset,
        .state = {call.state[0] + piece.offset},
        .count = piece.count,
        .rates = piece.rates,
        .gradient_scale = program::update_scale(*call.verdict, call.constants->kernels, call.static_count,
                                                call.whole_step)};
    optim::make_direction(call.optimizer, arguments, call.constants->update, stream, threads_);
    sum_squares(matrix.squares, stream);
    matrix.orthogonalizer->run(matrix.direction, matrix.squares.sums, matrix.squares.chunks, matrix.workspace,
                               stream);
    arguments.parameters = call.parameters + piece.offset;
    arguments.copy = call.copy.from(piece.offset);
    arguments.gradients = matrix.direction;
    arguments.state[0] = call.state[slots - 1] + piece.offset;
    optim::follow_direction(call.optimizer, arguments, call.constants->update, stream, threads_);
  }

  using Squares = double (*)(const float*, int64_t);
  Squares squares() const { return as_gpus_ ? sum_of_squares_as_gpus : sum_of_squares; }
  /// Chunks' sums, in their order.
  static double folded(const double* sums, int64_t count, bool as_gpus) {
    return as_gpus ? sum_as_gpus(sums, count) : std::accumulate(sums, sums + count, 0.0);
  }

  int threads_;
  bool as_gpus_;
};

}  // namespace

std::unique_ptr<StepKernels> make_cpu_step_kernels(int threads, SumOrder order) {
  return std::make_unique<CpuStepKernels>(threads, order);
}

std::unique_ptr<StepKernels> make_step_kernels(device::DeviceKind device, int threads, SumOrder order) {
  return device == device::DeviceKind::cuda ? make_gpu_step_kernels() : make_cpu_step_kernels(threads, order);
}

}  // namespace lockstep::run
