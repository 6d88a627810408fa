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

/// The sum of each column's lanes.
inline void fold_lanes(const ColumnLanes& lanes, const float* lane_sums, float* sums) {
  const int64_t columns = lanes.columns;
  for (int64_t c = 0; c < columns; ++c) sums[c] = lane_sums[c];
  for (int64_t first = columns; first < lanes.width; first += columns)
    for (int64_t c = 0; c < columns; ++c) sums[c] += lane_sums[first + c];
}

template <class Term>
[[gnu::always_inline]] inline void sum_columns(int64_t rows, const ColumnLanes& lanes, float* __restrict sums,
                                               const Term& term) {
  const int64_t columns = lanes.columns, width = lanes.width;
  if (lanes.group == 1) return sum_lanes(rows, columns, width, sums, term);
  float lane_sums[ColumnLanes::kMaxLanes];
  sum_lanes(rows, columns, width, lane_sums, term);
  fold_lanes(lanes, lane_sums, sums);
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

/// A ReLU, as ReluFormula has it.
[[gnu::always_inline]] inline Register positive(const Register& value, const Register& result) {
  return value <= Register{} ? Register{} : result;
}

template <bool kAdds, bool kHasRelu>
void normalize_of(int64_t rows, const ColumnLanes& lanes, const Normalization& n) {
  for_elements(rows, lanes, [=](const auto& at, const auto& of, const auto& to) {
    Register y = fused(at(n.x) - of(n.mean), of(n.scale), of(n.bias));
    if constexpr (kAdds) y += at(n.other);
    to(n.y, kHasRelu ? positive(y, y) : y);
  });
}

void normalize(int64_t rows, const ColumnLanes& lanes, const Normalization& normalization) {
  const bool adds = normalization.other != nullptr;
  normalization.has_relu ? adds ? normalize_of<true, true>(rows, lanes, normalization)
                                : normalize_of<false, true>(rows, lanes, normalization)
  : adds ? normalize_of<true, false>(rows, lanes, normalization)
                         : normalize_of<false, false>(rows, lanes, normalization);
}

template <bool kHasRelu>
void input_gradient_of(int64_t rows, const ColumnLanes& lanes, float* dx, const NormalizedGradient& g,
                       const float* of_dy, const float* of_x, const float* constant) {
  for_elements(rows, lanes, [=](const auto& at, const auto& of, const auto& to) {
    const Register difference = at(g.x) - of(g.mean);
    Register dy = at(g.dy);
    if constexpr (kHasRelu) dy = positive(fused(difference, of(g.scale), of(g.bias)), dy);
    to(dx, fused(of(of_dy), dy, fused(of(of_x), difference, of(constant))));
  });
}

void input_gradient(int64_t rows, const ColumnLanes& lanes, float* dx, const NormalizedGradient& gradient,
                    const float* of_dy, const float* of_x, const float* constant) {
  gradient.scale == nullptr ? input_gradient_of<false>(rows, lanes, dx, gradient, of_dy, of_x, constant)
                            : input_gradient_of<true>(rows, lanes, dx, gradient, of_dy, of_x, constant);
}

/// The first `count` lanes of a list; all of a register, if kIsWhole.
template <bool kIsWhole>
[[gnu::always_inline]] inline Register load_lanes(const float* from, int64_t count) {
  if constexpr (kIsWhole) return load_register(from);
  return load_first_register(from, count);
}

/// Adds to the sums of a register of lanes what kRows rows have for them, `width` apart. Order: sum_lanes().
template <bool kHasRelu, int kRows, bool kIsWhole>
[[gnu::always_inline]] inline void add_gradients(const NormalizedGradient& g, int64_t first, int64_t width,
                                                 int64_t lane, int64_t count, float* products, float* sums) {
  const auto of = [=](const float* list) __attribute__((always_inline)) {
    return load_lanes<kIsWhole>(list + lane, count);
  };
  const Register mean = of(g.mean);
  Register scale{}, bias{};
  if constexpr (kHasRelu) scale = of(g.scale), bias = of(g.bias);
  Register product[kRows], gradient[kRows];
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
    const int64_t at = first + row * width + lane;
    const Register difference = load_lanes<kIsWhole>(g.x + at, count) - mean;
    gradient[row] = load_lanes<kIsWhole>(g.dy + at, count);
    if constexpr (kHasRelu) gradient[row] = positive(fused(difference, scale, bias), gradient[row]);
    product[row] = gradient[row] * difference;
  }
  const auto add = [=](float* to, const Register(&terms)[kRows]) __attribute__((always_inline)) {
    Register sum = terms[0];
    if constexpr (kRows == 4) sum = (terms[0] + terms[1]) + (terms[2] + terms[3]);
    sum = load_lanes<kIsWhole>(to + lane, count) + sum;
    if constexpr (kIsWhole)
      store_register(to + lane, sum);
    else
      store_columns(to + lane, reinterpret_cast<const float*>(&sum), count);
  };
  add(products, product);
  add(sums, gradient);
}

/// Of the first `size` lanes.
template <bool kHasRelu, int kRows>
[[gnu::always_inline]] inline void add_rows_of_gradients(const NormalizedGradient& g, int64_t first,
                                                         int64_t width, int64_t size, float* products,
                                                         float* sums) {
  int64_t lane = 0;
  for (; lane + kRegisterLanes <= size; lane += kRegisterLanes)
    add_gradients<kHasRelu, kRows, true>(g, first, width, lane, kRegisterLanes, products, sums);
  if (lane < size) add_gradients<kHasRelu, kRows, false>(g, first, width, lane, size - lane, products, sums);
}

template <bool kHasRelu>
void gradient_sums_of(int64_t rows, const ColumnLanes& lanes, float* products, float* sums,
                      const NormalizedGradient& gradient) {
  const NormalizedGradient g = gradient;  // a copy that the stores below cannot change
  const int64_t count = rows * lanes.columns, width = lanes.width;
  float lane_products[ColumnLanes::kMaxLanes], lane_sums[ColumnLanes::kMaxLanes];
  float* const of_products = lanes.group == 1 ? products : lane_products;
  float* const of_sums = lanes.group == 1 ? sums : lane_sums;
  for (int64_t lane = 0; lane < width; ++lane) of_products[lane] = of_sums[lane] = 0.0f;
  int64_t begin = 0;
  for (; begin + 4 * width <= count; begin += 4 * width)
    add_rows_of_gradients<kHasRelu, 4>(g, begin, width, width, of_products, of_sums);
  for (; begin < count; begin += width)
    add_rows_of_gradients<kHasRelu, 1>(g, begin, width, count - begin < width ? count - begin : width,
                                       of_products, of_sums);
  if (lanes.group == 1) return;
  fold_lanes(lanes, lane_products, products);
  fold_lanes(lanes, lane_sums, sums);
}

/// (Two sums in one pass over memory, and one reading of a normalization's inputs.)
void gradient_sums(int64_t rows, const ColumnLanes& lanes, float* products, float* sums,
                   const NormalizedGradient& gradient) {
  gradient.scale == nullptr ? gradient_sums_of<false>(rows, lanes, products, sums, gradient)
                            : gradient_sums_of<true>(rows, lanes, products, sums, gradient);
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
    .gradient_sums = gradient_sums,
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
