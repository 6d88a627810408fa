#include "ops/cpu/loops/lstm.h"

#include "ops/lstm.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {
namespace {

constexpr int kGates = 4;

/// Whole vectors of units: `gate` apart from each other lie their gates. No list overlaps another.
void forward_whole(int64_t count, int64_t gate, float* gates, const float* __restrict cell_before,
                   float* __restrict cell, float* __restrict hidden) {
  float* __restrict gate_i = gates;
  float* __restrict gate_f = gates + gate;
  float* __restrict gate_g = gates + 2 * gate;
  float* __restrict gate_o = gates + 3 * gate;
  const int64_t whole = count & -kLanes;
  for (int64_t n = 0; n < whole; ++n) {
    const LstmUnit unit = lstm_unit(gate_i[n], gate_f[n], gate_g[n], gate_o[n], cell_before[n]);
    gate_i[n] = unit.i;
    gate_f[n] = unit.f;
    gate_g[n] = unit.g;
    gate_o[n] = unit.o;
    cell[n] = unit.cell;
    hidden[n] = unit.hidden;
  }
}

struct BackwardLists {
  const float *gates, *cell, *cell_before, *output_gradient, *hidden_gradient;
  float *cell_gradient, *gate_gradients;
};

void backward_whole(int64_t count, int64_t gate, const BackwardLists& lists) {
  const float* __restrict gates = lists.gates;
  const float* __restrict cell = lists.cell;
  const float* __restrict cell_before = lists.cell_before;
  const float* __restrict of_output = lists.output_gradient;
  const float* __restrict of_hidden = lists.hidden_gradient;
  float* __restrict of_cell = lists.cell_gradient;
  float* __restrict of_i = lists.gate_gradients;
  float* __restrict of_f = lists.gate_gradients + gate;
  float* __restrict of_g = lists.gate_gradients + 2 * gate;
  float* __restrict of_o = lists.gate_gradients + 3 * gate;
  const int64_t whole = count & -kLanes;
  for (int64_t n = 0; n < whole; ++n) {
    const LstmUnitGradient gradient =
        lstm_unit_gradient(gates[n], gates[gate + n], gates[2 * gate + n], gates[3 * gate + n], cell[n],
                           cell_before[n], of_output[n] + of_hidden[n], of_cell[n]);
    of_i[n] = gradient.i;
    of_f[n] = gradient.f;
    of_g[n] = gradient.g;
    of_o[n] = gradient.o;
    of_cell[n] = gradient.cell_before;
  }
}

}  // namespace

// Units behind the last whole vector are computed in one of their own.

void lstm_forward(const LstmForward& position) {
  const int64_t units = position.units, done = units & -kLanes, left = units - done;
  forward_whole(units, units, position.gates, position.cell_before, position.cell, position.hidden);
  if (left == 0) return;
  float gates[kGates * kLanes], cell_before[kLanes], cell[kLanes], hidden[kLanes];
  for (int g = 0; g < kGates; ++g)
    store(gates + g * kLanes, load_first(position.gates + g * units + done, left, 0.0f));
  store(cell_before, load_first(position.cell_before + done, left, 0.0f));
  forward_whole(kLanes, kLanes, gates, cell_before, cell, hidden);
  for (int g = 0; g < kGates; ++g)
    store_first(position.gates + g * units + done, left, load(gates + g * kLanes));
  store_first(position.cell + done, left, load(cell));
  store_first(position.hidden + done, left, load(hidden));
}

void lstm_backward(const LstmBackward& position) {
  const int64_t units = position.units, done = units & -kLanes, left = units - done;
  backward_whole(units, units,
                 {position.gates, position.cell, position.cell_before, position.output_gradient,
                  position.hidden_gradient, position.cell_gradient, position.gate_gradients});
  if (left == 0) return;
  float gates[kGates * kLanes], made[kGates * kLanes], cell[kLanes], cell_before[kLanes], output[kLanes],
      hidden[kLanes], of_cell[kLanes];
  for (int g = 0; g < kGates; ++g)
    store(gates + g * kLanes, load_first(position.gates + g * units + done, left, 0.0f));
  store(cell, load_first(position.cell + done, left, 0.0f));
  store(cell_before, load_first(position.cell_before + done, left, 0.0f));
  store(output, load_first(position.output_gradient + done, left, 0.0f));
  store(hidden, load_first(position.hidden_gradient + done, left, 0.0f));
  store(of_cell, load_first(position.cell_gradient + done, left, 0.0f));
  backward_whole(kLanes, kLanes, {gates, cell, cell_before, output, hidden, of_cell, made});
  for (int g = 0; g < kGates; ++g)
    store_first(position.gate_gradients + g * units + done, left, load(made + g * kLanes));
  store_first(position.cell_gradient + done, left, load(of_cell));
}

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
