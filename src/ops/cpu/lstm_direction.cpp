#include "ops/cpu/lstm_direction.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/loops/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/replica_fold.h"

namespace lockstep::ops {
namespace {

/// So that whatever follows is aligned as products want it.
int64_t aligned(int64_t floats) { return (floats + 15) / 16 * 16; }
int64_t floats_of(int64_t bytes) { return aligned(bytes / static_cast<int64_t>(sizeof(float))); }

bool is_masked(const float* mask, int64_t row) { return mask != nullptr && mask[row] == 0.0f; }

}  // namespace

struct LstmDirection::Samples {
  int64_t first, count;
};

LstmDirection::LstmDirection(const LstmSizes& sizes, int64_t direction, const KernelOptions& options)
    : sizes_(sizes),
      direction_(direction),
      rows_(options.rows),
      threads_(std::max(1, options.intra_op_threads)),
      replicas_(options.virtual_replicas),
      input_products_(options.rows > 0 ? options.rows : sizes.rows(), sizes.gates(), sizes.inputs, replicas_,
                      threads_),
      hidden_products_(sizes.rows(), sizes.gates(), sizes.units, replicas_, threads_),
      recurrent_(sizes.units, sizes.gates(), true),
      recurrent_gradient_(sizes.gates(), sizes.units, false),
      few_inputs_(sizes.inputs, sizes.gates(), true) {}

int64_t LstmDirection::thread_samples() const { return (sizes_.batch + threads_ - 1) / threads_; }

LstmDirection::Samples LstmDirection::samples_of(int64_t thread) const {
  const int64_t first = std::min(sizes_.batch, thread * thread_samples());
  return {first, std::min(thread_samples(), sizes_.batch - first)};
}

int64_t LstmDirection::forward_thread_floats() const {
  return aligned(recurrent_.left_floats(thread_samples())) + aligned(sizes_.units);
}

int64_t LstmDirection::kept_floats() const {
  if (!keeps_panels()) return 0;
  return aligned(recurrent_.panel_floats()) + aligned(few_inputs_.panel_floats());
}

void LstmDirection::pack(const LstmForwardCall& call, float* kept) const {
  recurrent_.pack(call.weight_hh, threads_, kept);
  few_inputs_.pack(call.weight_ih, threads_, kept + aligned(recurrent_.panel_floats()));
}

int64_t LstmDirection::forward_floats() const {
  if (keeps_panels())
    return std::max(aligned(few_inputs_.left_floats(rows_)), threads_ * forward_thread_floats());
  return aligned(recurrent_.panel_floats()) +
         std::max(floats_of(input_products_.forward_bytes()), threads_ * forward_thread_floats());
}

void LstmDirection::forward(const LstmForwardCall& call, const RowRange& positions, const float* kept,
                            float* workspace) const {
  if (keeps_panels()) {
    multiply_inputs(call, positions, kept + aligned(recurrent_.panel_floats()), workspace);
    return run_forward(call, positions, {0, sizes_.batch}, kept, threads_, workspace);
  }
  float* const panels = workspace;
  float* const rest = panels + aligned(recurrent_.panel_floats());
  const int64_t pieces = rows_ > 0 ? sizes_.batch : 1;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int64_t row = piece * sizes_.positions + positions.begin;
    input_products_.forward(call.x + row * sizes_.inputs, call.weight_ih, call.bias_ih,
                            call.gates + row * sizes_.gates(), rest);
  }
  recurrent_.pack(call.weight_hh, threads_, panels);
  parallel_for(threads_, threads_, [&](int64_t thread) {
    run_forward(call, positions, samples_of(thread), panels, 1, rest + thread * forward_thread_floats());
  });
}

/// To the bits of ChainedProducts, whose chains begin with 0, too.
void LstmDirection::multiply_inputs(const LstmForwardCall& call, const RowRange& positions,
                                    const float* panels, float* workspace) const {
  for (int64_t sample = 0; sample < sizes_.batch; ++sample) {
    const int64_t row = sample * sizes_.positions + positions.begin;
    float* const gates = call.gates + row * sizes_.gates();
    for (int64_t i = 0; i < rows_; ++i)
      few_inputs_.set_row(workspace, rows_, i, call.x + (row + i) * sizes_.inputs);
    std::fill_n(gates, rows_ * sizes_.gates(), 0.0f);
    few_inputs_.add(panels, workspace, rows_, gates, sizes_.gates(), call.bias_ih, threads_);
  }
}

void LstmDirection::run_forward(const LstmForwardCall& call, const RowRange& positions,
                                const Samples& samples, const float* panels, int threads, float* own) const {
  if (samples.count == 0) return;
  const int64_t units = sizes_.units, before = is_reverse() ? 1 : -1;
  float* const hidden = own;
  float* const zeros = own + aligned(recurrent_.left_floats(samples.count));
  std::fill_n(zeros, units, 0.0f);
  const auto row_of = [&](int64_t i, int64_t t) { return (samples.first + i) * sizes_.positions + t; };
  const auto output_of = [&](int64_t row) { return call.output + row * output_stride() + column(); };
  const bool begins = is_reverse() || positions.begin == 0;
  for (int64_t i = 0; i < samples.count; ++i)
    recurrent_.set_row(hidden, samples.count, i,
                       begins ? zeros : output_of(row_of(i, positions.begin + before)));
  for (int64_t step = 0; step < positions.count(); ++step) {
    const int64_t t = is_reverse() ? positions.end - 1 - step : positions.begin + step;
    recurrent_.add(panels, hidden, samples.count, call.gates + row_of(0, t) * sizes_.gates(),
                   sizes_.positions * sizes_.gates(), call.bias_hh, threads);
    for (int64_t i = 0; i < samples.count; ++i) {
      const int64_t row = row_of(i, t);
      step_forward(call, row, step == 0 && begins ? zeros : call.cells + (row + before) * units);
      if (!is_masked(call.mask, row)) recurrent_.set_row(hidden, samples.count, i, output_of(row));
    }
  }
}

/// From the gates' sums of one position of a sample.
void LstmDirection::step_forward(const LstmForwardCall& call, int64_t row, const float* cell_before) const {
  const int64_t units = sizes_.units;
  float* const gates = call.gates + row * sizes_.gates();
  float* const cell = call.cells + row * units;
  float* const output = call.output + row * output_stride() + column();
  if (is_masked(call.mask, row)) {
    std::fill_n(gates, sizes_.gates(), 0.0f);
    std::copy_n(cell_before, units, cell);
    std::fill_n(output, units, 0.0f);
    return;
  }
  loops().lstm_forward(
      {.units = units, .gates = gates, .cell_before = cell_before, .cell = cell, .hidden = output});
}

int64_t LstmDirection::backward_thread_floats() const {
  return aligned(recurrent_gradient_.left_floats(thread_samples())) +
         aligned((2 * thread_samples() + 1) * sizes_.units);
}

/// Gradients of the gates' sums [rows, gates], then either what threads need to compute them, or what
/// follows.
int64_t LstmDirection::backward_floats() const {
  const int64_t recurrence =
      aligned(recurrent_gradient_.panel_floats()) + threads_ * backward_thread_floats();
  const int64_t second = is_reverse() ? aligned(sizes_.rows() * sizes_.inputs) : 0;
  const int64_t products =
      std::max({second + floats_of(input_products_.input_gradient_bytes()),
                floats_of(input_products_.weight_gradient_bytes()),
                aligned(sizes_.rows() * sizes_.units) + floats_of(hidden_products_.weight_gradient_bytes()),
                floats_of(column_chain_bytes(sizes_.gates(), replicas_))});
  return aligned(sizes_.rows() * sizes_.gates()) + std::max(recurrence, products);
}

void LstmDirection::backward(const LstmBackwardCall& call, float* workspace) const {
  float* const gradients = workspace;
  float* const rest = gradients + aligned(sizes_.rows() * sizes_.gates());
  float* const own = rest + aligned(recurrent_gradient_.panel_floats());
  recurrent_gradient_.pack(call.weight_hh, threads_, rest);
  parallel_for(threads_, threads_, [&](int64_t thread) {
    run_backward(call, samples_of(thread), rest, gradients, own + thread * backward_thread_floats());
  });
  finish(call, gradients, rest);
}

void LstmDirection::run_backward(const LstmBackwardCall& call, const Samples& samples, const float* panels,
                                 float* gradients, float* own) const {
  const int64_t units = sizes_.units, gates = sizes_.gates(), positions = sizes_.positions;
  const int64_t before = is_reverse() ? 1 : -1;
  float* const left = own;
  float* const of_hidden = left + aligned(recurrent_gradient_.left_floats(thread_samples()));
  float* const of_cell = of_hidden + samples.count * units;
  float* const zeros = of_cell + samples.count * units;
  std::fill_n(of_hidden, (2 * samples.count + 1) * units, 0.0f);
  for (int64_t step = positions - 1; step >= 0 && samples.count > 0; --step) {
    const int64_t t = is_reverse() ? positions - 1 - step : step;
    for (int64_t i = 0; i < samples.count; ++i) {
      const int64_t row = (samples.first + i) * positions + t;
      float* const made = gradients + row * gates;
      if (is_masked(call.mask, row)) {  // gradients of states pass it
        std::fill_n(made, gates, 0.0f);
      } else {
        loops().lstm_backward({.units = units,
                               .gates = call.gates + row * gates,
                               .cell = call.cells + row * units,
                               .cell_before = step == 0 ? zeros : call.cells + (row + before) * units,
                               .output_gradient = call.output_gradient + row * output_stride() + column(),
                               .hidden_gradient = of_hidden + i * units,
                               .cell_gradient = of_cell + i * units,
                               .gate_gradients = made});
        std::fill_n(of_hidden + i * units, units, 0.0f);
      }
      recurrent_gradient_.set_row(left, samples.count, i, made);
    }
    if (step > 0) recurrent_gradient_.add(panels, left, samples.count, of_hidden, units, nullptr);
  }
}

/// The state that each position began with.
void LstmDirection::gather_hidden(const LstmBackwardCall& call, float* hidden) const {
  const int64_t units = sizes_.units, positions = sizes_.positions;
  parallel_for(threads_, sizes_.batch, [&](int64_t sample) {
    const float* last = nullptr;
    for (int64_t step = 0; step < positions; ++step) {
      const int64_t row = sample * positions + (is_reverse() ? positions - 1 - step : step);
      if (last == nullptr)
        std::fill_n(hidden + row * units, units, 0.0f);
      else
        std::copy_n(last, units, hidden + row * units);
      if (!is_masked(call.mask, row)) last = call.output + row * output_stride() + column();
    }
  });
}

/// Gradients of the input and the parameters, from those of the gates' sums.
void LstmDirection::finish(const LstmBackwardCall& call, const float* gradients, float* workspace) const {
  if (call.input_gradient != nullptr && !is_reverse()) {
    input_products_.input_gradient(gradients, call.weight_ih, call.input_gradient, workspace);
  } else if (call.input_gradient != nullptr) {
    const int64_t count = sizes_.rows() * sizes_.inputs;
    input_products_.input_gradient(gradients, call.weight_ih, workspace, workspace + aligned(count));
    add_numbers(call.input_gradient, workspace, count, threads_);
  }
  input_products_.weight_gradient(gradients, call.x, call.weight_ih_gradient, call.accumulate, workspace);
  gather_hidden(call, workspace);
  hidden_products_.weight_gradient(gradients, workspace, call.weight_hh_gradient, call.accumulate,
                                   workspace + aligned(sizes_.rows() * sizes_.units));
  finish_biases(call, gradients, workspace);
}

/// Both biases have one gradient. Its chains go on from what was there, which ties may have made different.
void LstmDirection::finish_biases(const LstmBackwardCall& call, const float* gradients,
                                  float* workspace) const {
  float* const first = call.bias_ih_gradient;
  float* const second = call.bias_hh_gradient;
  const auto bytes = static_cast<size_t>(sizes_.gates()) * sizeof(float);
  const bool alike = first != second && (!call.accumulate || std::memcmp(first, second, bytes) == 0);
  const auto sum = [&](float* sums) {
    column_chains(gradients, sizes_.rows(), sizes_.gates(), replicas_, call.accumulate, sums, workspace);
  };
  sum(first);
  if (alike)
    std::memcpy(second, first, bytes);
  else
    sum(second);
}

}  // namespace lockstep::ops
