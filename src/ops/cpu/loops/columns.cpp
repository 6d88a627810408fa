#include "ops/cpu/loops/columns.h"

#include "ops/cpu/loops/store_columns.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {
namespace {

/// sums[lane] = sum of term(i, lane) over the elements i of the lane, four rows at a time.
template <class Term>
[[gnu::always_inline]] inline void sum_lanes(int64_t rows, int64_t columns, int64_t width,
                                             float* __restrict sums, const Term& term) {
  const int64_t count = rows * columns;
  for (int64_t lane = 0; lane < width; ++lane) sums[lane] = 0.0f;
  int64_t begin = 0;
  for (; begin + 4 * width <= count; begin += 4 * width)
    for (int64_t lane = 0; lane < width; ++lane) {
      const int64_t i = begin + lane;
      sums[lane] +=
          (term(i, lane) + term(i + width, lane)) + (term(i + 2 * width, lane) + term(i + 3 * width, lane));
    }
  for (; begin < count; begin += width) {
    const int64_t rest = count - begin < width ? count - begin : width;
    for (int64_t lane = 0; lane < rest; ++lane) sums[lane] += term(begin + lane, lane);
  }
}

template <class Term>
[[gnu::always_inline]] inline void sum_columns(int64_t rows, const ColumnLanes& lanes, float* __restrict sums,
                                               const Term& term) {
  const int64_t columns = lanes.columns, width = lanes.width;
  if (lanes.group == 1) return sum_lanes(rows, columns, width, sums, term);
  float lane_sums[ColumnLanes::kMaxLanes];
  sum_lanes(rows, columns, width, lane_sums, term);
  for (int64_t c = 0; c < columns; ++c) sums[c] = lane_sums[c];
  for (int64_t first = columns; first < width; first += columns)
    for (int64_t c = 0; c < columns; ++c) sums[c] += lane_sums[first + c];
}

void sum(int64_t rows, const ColumnLanes& lanes, float* __restrict sums, const float* __restrict x) {
  sum_columns(rows, lanes, sums, [x](int64_t i, int64_t) { return x[i]; });
}

void squared_deviations(int64_t rows, const ColumnLanes& lanes, float* __restrict sums,
                        const float* __restrict x, const float* __restrict mean) {
  sum_columns(rows, lanes, sums, [=](int64_t i, int64_t lane) {
    const float deviation = x[i] - mean[lane];
    return deviation * deviation;
  });
}

void products(int64_t rows, const ColumnLanes& lanes, float* __restrict sums, const float* __restrict dy,
              const float* __restrict x, const float* __restrict mean) {
  sum_columns(rows, lanes, sums, [=](int64_t i, int64_t lane) { return dy[i] * (x[i] - mean[lane]); });
}

/// The first `count` < kRegisterLanes numbers of a list, the other lanes 0.
[[gnu::always_inline]] inline Register load_first_register(const float* from, int64_t count) {
  float lanes[kRegisterLanes] = {};
  for (int64_t lane = 0; lane < count; ++lane) lanes[lane] = from[lane];
  return load_register(lanes);
}

/// Calls work(at, of, to) for registers that cover the elements of `rows` rows: at(list) gives a list's
/// elements there, of(list) the numbers of their lanes, and to(list, values) writes elements. Those at the
/// end of a row may be computed twice, which is why what is written must not be read. (In place of a scalar
/// rest: a multiply-add of one element takes as long as one of a register. Registers, not sixteen lanes at
/// once, which g++ passes through memory if they are several.)
template <class Work>
[[gnu::always_inline]] inline void for_elements(int64_t rows, const ColumnLanes& lanes, const Work& work) {
  const int64_t count = rows * lanes.columns, width = lanes.width;
  const auto whole = [&work](int64_t i, int64_t lane) __attribute__((always_inline)) {
    work([i](const float* list) { return load_register(list + i); },
         [lane](const float* list) { return load_register(list + lane); },
         [i](float* list, Register values) { store_register(list + i, values); });
  };
  for (int64_t begin = 0; begin < count; begin += width) {
    const int64_t size = count - begin < width ? count - begin : width;
    int64_t lane = 0;
    for (; lane + kRegisterLanes <= size; lane += kRegisterLanes) whole(begin + lane, lane);
    if (lane == size) continue;
    if (size >= kRegisterLanes)
      whole(begin + size - kRegisterLanes, size - kRegisterLanes);
    else
      work([=](const float* list) { return load_first_register(list + begin, size); },
           [=](const float* list) { return load_first_register(list, size); },
           [=](float* list, Register values) {
             store_columns(list + begin, reinterpret_cast<const float*>(&values), size);
           });
  }
}

void normalize(int64_t rows, const ColumnLanes& lanes, float* y, const float* x, const float* mean,
               const float* scale, const float* bias) {
  for_elements(rows, lanes, [=](const auto& at, const auto& of, const auto& to) {
    to(y, fused(at(x) - of(mean), of(scale), of(bias)));
  });
}

void input_gradient(int64_t rows, const ColumnLanes& lanes, float* dx, const float* dy, const float* x,
                    const float* mean, const float* of_dy, const float* of_x, const float* constant) {
  for_elements(rows, lanes, [=](const auto& at, const auto& of, const auto& to) {
    to(dx, fused(of(of_dy), at(dy), fused(of(of_x), at(x) - of(mean), of(constant))));
  });
}

/// `kColumns` chains at once, which stay in registers and hide the time that each addition takes.
template <int kColumns>
void add_rows_of(float* __restrict sums, const float* __restrict rows, int64_t count, int64_t stride) {
  float chains[kColumns];
  for (int column = 0; column < kColumns; ++column) chains[column] = sums[column];
  for (int64_t row = 0; row < count; ++row, rows += stride)
    for (int column = 0; column < kColumns; ++column) chains[column] += rows[column];
  for (int column = 0; column < kColumns; ++column) sums[column] = chains[column];
}

/// The same for at most kMost columns.
template <int kMost>
void add_few(int64_t columns, float* sums, const float* rows, int64_t count, int64_t stride) {
  if (columns == kMost)
    add_rows_of<kMost>(sums, rows, count, stride);
  else if constexpr (kMost > 1)
    add_few<kMost - 1>(columns, sums, rows, count, stride);
}

}  // namespace

const ColumnLoops kColumnLoops{
    .sum = sum,
    .squared_deviations = squared_deviations,
    .products = products,
    .normalize = normalize,
    .input_gradient = input_gradient,
};

void add_rows(float* sums, const float* rows, int64_t count, int64_t columns) {
  constexpr int kMany = 8 * static_cast<int>(kLanes), kAtOnce = 2 * static_cast<int>(kLanes);
  int64_t column = 0;
  for (; column + kMany <= columns; column += kMany)
    add_rows_of<kMany>(sums + column, rows + column, count, columns);
  for (; column + kAtOnce <= columns; column += kAtOnce)
    add_rows_of<kAtOnce>(sums + column, rows + column, count, columns);
  if (column < columns) add_few<kAtOnce - 1>(columns - column, sums + column, rows + column, count, columns);
}

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
