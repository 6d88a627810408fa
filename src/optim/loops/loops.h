#pragma once

#include <cstdint>
#include <span>

#include "optim/formulas.h"

namespace lockstep::optim {

/// Elements to update. Nothing overlaps.
struct UpdateElements {
  float* parameters;
  const float* gradients;
  float* state[kMostStateSlots];
  int64_t count;
};

/// Applies a formula with so many numbers of state to elements.
template <class Formula, int slots>
struct UpdateLoop {
  void (*run)(const Formula& formula, const UpdateElements& elements) = nullptr;
};

/// The loops over elements, compiled once for each instruction set (cmake/loops.cmake) and chosen when the
/// program runs. All compute the same bits. What ops/cpu/loops/loops.h says of sources holds here, too. A new
/// formula adds a line here.
struct UpdateLoops : UpdateLoop<SgdFormula, 0>,
                     UpdateLoop<SgdFormula, 1>,
                     UpdateLoop<AdamFormula, 2>,
                     UpdateLoop<LarsFormula, 1>,
                     UpdateLoop<LambFormula, 2>,
                     UpdateLoop<MuonDirection, 1>,
                     UpdateLoop<MuonFormula, 0>,
                     UpdateLoop<Averaged<SgdFormula>, 1>,
                     UpdateLoop<Averaged<SgdFormula>, 2>,
                     UpdateLoop<Averaged<AdamFormula>, 3>,
                     UpdateLoop<Averaged<LarsFormula>, 2>,
                     UpdateLoop<Averaged<LambFormula>, 3>,
                     UpdateLoop<Averaged<MuonFormula>, 1> {
  const char* instruction_set = nullptr;
  /// values[i] moves towards means[i].
  void (*statistic)(const StatisticFormula& formula, float* values, const float* means,
                    int64_t count) = nullptr;

  template <class Formula, int slots>
  void update(const Formula& formula, const UpdateElements& elements) const {
    UpdateLoop<Formula, slots>::run(formula, elements);
  }
};

/// As ops::loops() and ops::all_loops() are chosen.
const UpdateLoops& update_loops();
std::span<const UpdateLoops* const> all_update_loops();

}  // namespace lockstep::optim
