#include "base/simd.h"
#include "optim/loops/loops.h"

namespace lockstep::optim {
inline namespace LOCKSTEP_SIMD {

// Declared first, or what is constant is local to this file.
extern const UpdateLoops kUpdateLoops;

namespace {

// Every element is a function of its own numbers alone, so that any split of a range gives the same bits. The
// loops over whole vectors stay functions of their own, with lists as parameters that overlap none of the
// others: otherwise compilers make scalars of them.

template <int slots, class Formula>
[[gnu::noinline, gnu::noclone]] void update_whole(int64_t count, const Formula& formula, float* __restrict p,
                                                  const float* __restrict g, float* __restrict s,
                                                  float* __restrict t, float* __restrict u) {
  const Formula apply = formula;  // a copy that the stores below cannot change
  const int64_t whole = count & -kLanes;
  for (int64_t i = 0; i < whole; ++i)
    if constexpr (slots == 0)
      apply(p[i], g[i]);
    else if constexpr (slots == 1)
      apply(p[i], g[i], s[i]);
    else if constexpr (slots == 2)
      apply(p[i], g[i], s[i], t[i]);
    else
      apply(p[i], g[i], s[i], t[i], u[i]);
}

/// Elements behind the last whole vector are updated in one of their own.
template <class Formula, int slots>
void update(const Formula& formula, const UpdateElements& elements) {
  const int64_t done = elements.count & -kLanes, left = elements.count - done;
  update_whole<slots>(done, formula, elements.parameters, elements.gradients, elements.state[0],
                      elements.state[1], elements.state[2]);
  if (left == 0) return;
  float p[kLanes], g[kLanes], state[kMostStateSlots][kLanes];
  store(p, load_first(elements.parameters + done, left, 0.0f));
  store(g, load_first(elements.gradients + done, left, 0.0f));
  for (int slot = 0; slot < slots; ++slot)
    store(state[slot], load_first(elements.state[slot] + done, left, 0.0f));
  update_whole<slots>(kLanes, formula, p, g, state[0], state[1], state[2]);
  store_first(elements.parameters + done, left, load(p));
  for (int slot = 0; slot < slots; ++slot) store_first(elements.state[slot] + done, left, load(state[slot]));
}

[[gnu::noinline, gnu::noclone]] void move_whole(int64_t count, const StatisticFormula& formula,
                                                float* __restrict values, const float* __restrict means) {
  const StatisticFormula move = formula;
  const int64_t whole = count & -kLanes;
  for (int64_t i = 0; i < whole; ++i) move(values[i], means[i]);
}

void move_statistic(const StatisticFormula& formula, float* values, const float* means, int64_t count) {
  const int64_t done = count & -kLanes, left = count - done;
  move_whole(done, formula, values, means);
  if (left == 0) return;
  float last[kLanes], towards[kLanes];
  store(last, load_first(values + done, left, 0.0f));
  store(towards, load_first(means + done, left, 0.0f));
  move_whole(kLanes, formula, last, towards);
  store_first(values + done, left, load(last));
}

}  // namespace

constinit const UpdateLoops kUpdateLoops {
  {update<SgdFormula, 0>}, {update<SgdFormula, 1>}, {update<AdamFormula, 2>}, {update<LarsFormula, 1>},
      {update<LambFormula, 2>}, {update<MuonDirection, 1>}, {update<MuonFormula, 0>},
      {update<Averaged<SgdFormula>, 1>}, {update<Averaged<SgdFormula>, 2>},
      {update<Averaged<AdamFormula>, 3>}, {update<Averaged<LarsFormula>, 2>},
      {update<Averaged<LambFormula>, 3>}, {update<Averaged<MuonFormula>, 1>},
#if defined(__AVX512F__)
      "AVX-512",
#elif defined(__AVX2__) && defined(__FMA__)
      "AVX2",
#else
      "portable",
#endif
      move_statistic,
};

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::optim
