#pragma once

#include "base/host_device.h"
#include "ops/elementwise.h"

namespace lockstep::ops {

// A unit of an LSTM at one position, for both CPU loops and CUDA kernels. Gates are i, f, g and o.

/// What a position leaves.
struct LstmUnit {
  float i, f, g, o;  ///< gates, after their activations
  float cell, hidden;
};

/// From the gates' sums.
LOCKSTEP_HOST_DEVICE inline LstmUnit lstm_unit(float i, float f, float g, float o, float cell_before) {
  LstmUnit unit{SigmoidFormula::forward(i),
                SigmoidFormula::forward(f),
                TanhFormula::forward(g),
                SigmoidFormula::forward(o),
                0.0f,
                0.0f};
  unit.cell = std::fma(unit.f, cell_before, unit.i * unit.g);
  unit.hidden = unit.o * TanhFormula::forward(unit.cell);
  return unit;
}

/// Gradients of the gates' sums, and of the cell before.
struct LstmUnitGradient {
  float i, f, g, o;
  float cell_before;
};

/// `hidden_gradient`: all of it, of the output and of the next position; `cell_gradient`: of the next
/// position.
LOCKSTEP_HOST_DEVICE inline LstmUnitGradient lstm_unit_gradient(float i, float f, float g, float o,
                                                                float cell, float cell_before,
                                                                float hidden_gradient, float cell_gradient) {
  const float bent = TanhFormula::forward(cell);
  const float of_cell = cell_gradient + TanhFormula::backward(hidden_gradient * o, bent);
  return {SigmoidFormula::backward(of_cell * g, i), SigmoidFormula::backward(of_cell * cell_before, f),
          TanhFormula::backward(of_cell * i, g), SigmoidFormula::backward(hidden_gradient * bent, o),
          of_cell * f};
}

}  // namespace lockstep::ops
