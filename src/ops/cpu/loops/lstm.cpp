#include "ops/cpu/loops/lstm.h"

#include "ops/lstm.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {
namespace {

constexpr int kGates = 4;

// Loops over whole vectors of units. They stay functions of their own, with lists as parameters that overlap
// none of the others: otherwise compilers make scalars of them.

[[gnu::noinline, gnu::noclone]] void forward_whole(int64_t count, float* __restrict gate_i,
                                                   float* __restrict gate_f, float* __restrict gate_g,
                                                   float* __restrict gate_o,
                                                   const float* __restrict cell_before,
                                                   float* __restrict cell, float* __restrict hidden) {
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

/// What gradients are computed from: lists that are only read.
struct Known {
  const float *i, *f, *g, *o, *cell, *cell_before, *output_gradient, *hidden_gradient;
};

[[gnu::noinline, gnu::noclone]] void backward_whole(int64_t count, const Known& known,
                                                    float* __restrict of_cell, float* __restrict of_i,
                                                    float* __restrict of_f, float* __restrict of_g,
                                                    float* __restrict of_o) {
  const Known from = known;  // a copy that the stores below cannot change
  const int64_t whole = count & -kLanes;
  for (int64_t n = 0; n < whole; ++n) {
    const LstmUnitGradient gradient =
        lstm_unit_gradient(from.i[n], from.f[n], from.g[n], from.o[n], from.cell[n], from.cell_before[n],
                           from.output_gradient[n] + from.hidden_gradient[n], of_cell[n]);
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
  float* const all = position.gates;
  forward_whole(units, all, all + units, all + 2 * units, all + 3 * units, position.cell_before,
                position.cell, position.hidden);
  if (left == 0) return;
  float gates[kGates * kLanes], cell_before[kLanes], cell[kLanes], hidden[kLanes];
  for (int g = 0; g < kGates; ++g)
    store(gates + g * kLanes, load_first(position.gates + g * units + done, left, 0.0f));
  store(cell_before, load_first(position.cell_before + done, left, 0.0f));
  forward_whole(kLanes, gates, gates + kLanes, gates + 2 * kLanes, gates + 3 * kLanes, cell_before, cell,
                hidden);
  for (int g = 0; g < kGates; ++g)
    store_first(position.gates + g * units + done, left, load(gates + g * kLanes));
  store_first(position.cell + done, left, load(cell));
  store_first(position.hidden + done, left, load(hidden));
}

void lstm_backward(const LstmBackward& position) {
  const int64_t units = position.units, done = units & -kLanes, left = units - done;
  const float* const all = position.gates;
  float* const made_all = position.gate_gradients;
  backward_whole(units,
                 {all, all + units, all + 2 * units, all + 3 * units, position.cell, position.cell_before,
                  position.output_gradient, position.hidden_gradient},
                 position.cell_gradient, made_all, made_all + units, made_all + 2 * units,
                 made_all + 3 * units);
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
  backward_whole(
      kLanes,
      {gates, gates + kLanes, gates + 2 * kLanes, gates + 3 * kLanes, cell, cell_before, output, hidden},
      of_cell, made, made + kLanes, made + 2 * kLanes, made + 3 * kLanes);
  for (int g = 0; g < kGates; ++g)
    store_first(position.gate_gradients + g * units + done, left, load(made + g * kLanes));
  store_first(position.cell_gradient + done, left, load(of_cell));
}

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
