#include "ops/cpu/loops/panels.h"

#include "ops/cpu/loops/loops.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {
namespace {

// A tile of sums stays in registers: kTileRows rows of two registers, as many as there are beside two of the
// panel and a factor. A panel is as many such tiles wide as it takes.
constexpr int64_t kTileRegisters = 2, kTileColumns = kTileRegisters * kRegisterLanes;
static_assert(kPanelColumns % kTileColumns == 0);
#if defined(__AVX512F__)
constexpr int64_t kTileRows = 12;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int64_t kTileRows = 6;
#else
constexpr int64_t kTileRows = 4;
#endif
static_assert(kLeftRows % kTileRows == 0 && kTileRows % 2 == 0);

using Row = Register[kTileRegisters];

[[gnu::always_inline]] inline void load_row(Row& row, const float* from) {
#pragma GCC unroll 2
  for (int64_t v = 0; v < kTileRegisters; ++v) row[v] = load_register(from + v * kRegisterLanes);
}

/// sums[i] += left(i, k) panel(k) for all k, one after the other. Element (i, k) of the left factor is
/// left[i * kRowStride + k * kInnerStride].
template <int64_t kRows, int64_t kRowStride, int64_t kInnerStride>
[[gnu::always_inline]] inline void add_chain(Row (&sums)[kRows], const float* left, const float* panel,
                                             int64_t panel_stride, int64_t inner) {
  for (int64_t k = 0; k < inner; ++k, panel += panel_stride) {
    Row row;
    load_row(row, panel);
#pragma GCC unroll 12
    for (int64_t i = 0; i < kRows; ++i) {
      const Register factor = splat_register(left[i * kRowStride + k * kInnerStride]);
#pragma GCC unroll 2
      for (int64_t v = 0; v < kTileRegisters; ++v) sums[i][v] = fused(factor, row[v], sums[i][v]);
    }
  }
}

template <int64_t kRows>
[[gnu::always_inline]] inline void clear(Row (&sums)[kRows]) {
#pragma GCC unroll 12
  for (int64_t i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int64_t v = 0; v < kTileRegisters; ++v) sums[i][v] = Register{};
}

template <int64_t kRows>
[[gnu::always_inline]] inline void load_tile(Row (&sums)[kRows], const float* from, int64_t stride) {
#pragma GCC unroll 12
  for (int64_t i = 0; i < kRows; ++i) load_row(sums[i], from + i * stride);
}

template <int64_t kRows>
[[gnu::always_inline]] inline void add_tile(Row (&sums)[kRows], const float* from, int64_t stride) {
#pragma GCC unroll 12
  for (int64_t i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int64_t v = 0; v < kTileRegisters; ++v)
      sums[i][v] = load_register(from + i * stride + v * kRegisterLanes) + sums[i][v];
}

template <int64_t kRows>
[[gnu::always_inline]] inline void store_tile(const Row (&sums)[kRows], float* to, int64_t stride) {
#pragma GCC unroll 12
  for (int64_t i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int64_t v = 0; v < kTileRegisters; ++v)
      store_register(to + i * stride + v * kRegisterLanes, sums[i][v]);
}

/// result (+)= left panel, of kRows rows and kTileColumns columns.
template <int64_t kRows>
void product_tile(const PanelProduct& product, const float* left, const float* panel, float* result,
                  int64_t stride, const float* bias) {
  Row sums[kRows];
  if (product.accumulate)
    load_tile(sums, result, stride);
  else
    clear(sums);
  add_chain<kRows, kLeftStride, 1>(sums, left, panel, product.panel_stride, product.inner);
  if (bias != nullptr) {
    Row term;
    load_row(term, bias);
#pragma GCC unroll 12
    for (int64_t i = 0; i < kRows; ++i)
#pragma GCC unroll 2
      for (int64_t v = 0; v < kTileRegisters; ++v) sums[i][v] += term[v];
  }
  store_tile(sums, result, stride);
}

template <int64_t kRows = kTileRows>
void product_rows(int64_t rows, const PanelProduct& product, const float* left, const float* panel,
                  float* result, int64_t stride, const float* bias) {
  if (rows >= kRows)
    product_tile<kRows>(product, left, panel, result, stride, bias);
  else if constexpr (kRows > 1)
    product_rows<kRows - 1>(rows, product, left, panel, result, stride, bias);
}

/// Copies a tile of the panel's width from or to a result that is narrower.
void copy_columns(float* to, int64_t to_stride, const float* from, int64_t from_stride, int64_t rows,
                  int64_t columns) {
  for (int64_t i = 0; i < rows; ++i)
    __builtin_memcpy(to + i * to_stride, from + i * from_stride, static_cast<size_t>(columns) * 4);
}

/// One place of a fold: the sums of a node of the tree over replicas, for a tile as high as the left
/// factor's.
struct Slot {
  float* data;
  int64_t stride;
};

/// The chains of kReplicas replicas that follow each other, side by side in registers, for kRows rows of
/// kTileColumns columns: their sum, or with `add` the sum of `to` and it.
template <int64_t kReplicas, int64_t kRows>
void replica_tile(const float* left, const float* panel, int64_t inner, float* to, int64_t stride, bool add) {
  Row sums[kReplicas][kRows];
#pragma GCC unroll 2
  for (int64_t r = 0; r < kReplicas; ++r) clear(sums[r]);
  for (int64_t k = 0; k < inner; ++k)
#pragma GCC unroll 2
    for (int64_t r = 0; r < kReplicas; ++r) {
      const int64_t at = r * inner + k;
      add_chain<kRows, 1, kLeftRows>(sums[r], left + at * kLeftRows, panel + at * kPanelColumns,
                                     kPanelColumns, 1);
    }
  if constexpr (kReplicas == 2)
#pragma GCC unroll 12
    for (int64_t i = 0; i < kRows; ++i)
#pragma GCC unroll 2
      for (int64_t v = 0; v < kTileRegisters; ++v) sums[0][i][v] += sums[1][i][v];
  if (add) add_tile(sums[0], to, stride);
  store_tile(sums[0], to, stride);
}

/// The same for the panel's width and the left factor's height.
template <int64_t kReplicas>
void replica_block(const float* left, const float* panel, int64_t inner, const Slot& to, bool add) {
  constexpr int64_t kRows = kTileRows / kReplicas;
  for (int64_t row = 0; row < kLeftRows; row += kRows)
    for (int64_t column = 0; column < kPanelColumns; column += kTileColumns)
      replica_tile<kReplicas, kRows>(left + row, panel + column, inner, to.data + row * to.stride + column,
                                     to.stride, add);
}

/// One chain that goes on from what `to` holds.
void continued_block(const float* left, const float* panel, int64_t inner, const Slot& to) {
  for (int64_t row = 0; row < kLeftRows; row += kTileRows)
    for (int64_t column = 0; column < kPanelColumns; column += kTileColumns) {
      float* at = to.data + row * to.stride + column;
      Row sums[kTileRows];
      load_tile(sums, at, to.stride);
      add_chain<kTileRows, 1, kLeftRows>(sums, left + row, panel + column, kPanelColumns, inner);
      store_tile(sums, at, to.stride);
    }
}

void add_block(const Slot& to, const Slot& from) {
  for (int64_t row = 0; row < kLeftRows; ++row)
    for (int64_t column = 0; column < kPanelColumns; column += kRegisterLanes) {
      float* at = to.data + row * to.stride + column;
      store_register(at, load_register(at) + load_register(from.data + row * from.stride + column));
    }
}

/// Replicas as long as this fill registers by themselves.
constexpr int64_t kLongReplica = 48;
/// Places for a fold of up to 2^20 replicas.
constexpr int kMostSlots = 21;

}  // namespace

void panel_product(const PanelProduct& product) {
  float edge[kTileRows * kPanelColumns];
  const bool is_whole = product.columns == kPanelColumns;
  for (int64_t row = 0; row < product.rows; row += kTileRows) {
    const int64_t rows = product.rows - row < kTileRows ? product.rows - row : kTileRows;
    const float* left = product.left + row * kLeftStride;
    float* result = product.result + row * product.result_stride;
    float* to = is_whole ? result : edge;
    const int64_t stride = is_whole ? product.result_stride : kPanelColumns;
    if (!is_whole && product.accumulate)
      copy_columns(edge, kPanelColumns, result, product.result_stride, rows, product.columns);
    for (int64_t column = 0; column < kPanelColumns; column += kTileColumns)
      product_rows(rows, product, left, product.panel + column, to + column, stride,
                   product.bias == nullptr ? nullptr : product.bias + column);
    if (!is_whole) copy_columns(result, product.result_stride, edge, kPanelColumns, rows, product.columns);
  }
}

void panel_fold(const PanelFold& fold) {
  alignas(64) float places[kMostSlots][kLeftRows * kPanelColumns];
  const bool is_whole = fold.columns == kPanelColumns && fold.rows == kLeftRows;
  const auto slot = [&](int64_t number) {
    return number == 0 && is_whole ? Slot{fold.result, fold.result_stride}
                                   : Slot{places[number], kPanelColumns};
  };
  if (fold.accumulate && !is_whole)
    copy_columns(places[0], kPanelColumns, fold.result, fold.result_stride, fold.rows, fold.columns);
  if (fold.accumulate) {
    continued_block(fold.left, fold.panel, fold.inner, slot(0));
  } else {
    const bool in_pairs = fold.inner < kLongReplica;
    int64_t filled = 0;
    for (int64_t first = 0; first < fold.replicas;) {
      // Blocks of two that begin at an even place are nodes of the tree.
      const bool pair = in_pairs && first + 2 <= fold.replicas;
      const int64_t count = pair ? 2 : 1, at = first * fold.inner;
      first += count;
      int64_t nodes = first / count;
      // Where the block completes a node with the one before it, it is added at once.
      const bool adds = first % count == 0 && nodes % 2 == 0;
      const Slot to = slot(adds ? filled - 1 : filled++);
      const float *left = fold.left + at * kLeftRows, *panel = fold.panel + at * kPanelColumns;
      pair ? replica_block<2>(left, panel, fold.inner, to, adds)
           : replica_block<1>(left, panel, fold.inner, to, adds);
      if (!adds) continue;
      for (nodes /= 2; nodes % 2 == 0; nodes /= 2) {
        --filled;
        add_block(slot(filled - 1), slot(filled));
      }
    }
    for (; filled > 1; --filled) add_block(slot(filled - 2), slot(filled - 1));
  }
  if (!is_whole)
    copy_columns(fold.result, fold.result_stride, places[0], kPanelColumns, fold.rows, fold.columns);
}

namespace {

using Eight [[gnu::vector_size(32)]] = float;
using EightIndices [[gnu::vector_size(32)]] = int32_t;

/// to[column][row] = from[row][column], of eight by eight.
[[gnu::always_inline]] inline void transpose_eight(float* to, int64_t to_stride, const float* from,
                                                   int64_t from_stride) {
  Eight a[8], b[8];
#pragma GCC unroll 8
  for (int64_t i = 0; i < 8; ++i) __builtin_memcpy(&a[i], from + i * from_stride, 32);
  constexpr EightIndices kLow = {0, 8, 1, 9, 4, 12, 5, 13}, kHigh = {2, 10, 3, 11, 6, 14, 7, 15};
#pragma GCC unroll 4
  for (int64_t i = 0; i < 4; ++i) {
    b[2 * i] = __builtin_shuffle(a[2 * i], a[2 * i + 1], kLow);
    b[2 * i + 1] = __builtin_shuffle(a[2 * i], a[2 * i + 1], kHigh);
  }
  constexpr EightIndices kFront = {0, 1, 8, 9, 4, 5, 12, 13}, kBack = {2, 3, 10, 11, 6, 7, 14, 15};
#pragma GCC unroll 2
  for (int64_t i = 0; i < 2; ++i)
#pragma GCC unroll 2
    for (int64_t j = 0; j < 2; ++j) {
      a[4 * i + 2 * j] = __builtin_shuffle(b[4 * i + j], b[4 * i + j + 2], kFront);
      a[4 * i + 2 * j + 1] = __builtin_shuffle(b[4 * i + j], b[4 * i + j + 2], kBack);
    }
  constexpr EightIndices kLeft = {0, 1, 2, 3, 8, 9, 10, 11}, kRight = {4, 5, 6, 7, 12, 13, 14, 15};
#pragma GCC unroll 4
  for (int64_t j = 0; j < 4; ++j) {
    const Eight first = __builtin_shuffle(a[j], a[j + 4], kLeft);
    const Eight second = __builtin_shuffle(a[j], a[j + 4], kRight);
    __builtin_memcpy(to + j * to_stride, &first, 32);
    __builtin_memcpy(to + (j + 4) * to_stride, &second, 32);
  }
}

}  // namespace

void transpose(float* to, int64_t to_stride, const float* from, int64_t from_stride, int64_t rows,
               int64_t columns, const float* bias) {
  const int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
  for (int64_t row = 0; row < whole_rows; row += 8)
    for (int64_t column = 0; column < whole_columns; column += 8)
      transpose_eight(to + column * to_stride + row, to_stride, from + row * from_stride + column,
                      from_stride);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = row < whole_rows ? whole_columns : 0; column < columns; ++column)
      to[column * to_stride + row] = from[row * from_stride + column];
  if (bias == nullptr) return;
  for (int64_t column = 0; column < columns; ++column)
    for (int64_t row = 0; row < rows; ++row) to[column * to_stride + row] += bias[row];
}

void pack_rows(float* panel, const float* rows, int64_t row_stride, int64_t count, int64_t inner) {
  transpose(panel, kPanelColumns, rows, row_stride, count, inner, nullptr);
  if (count == kPanelColumns) return;
  for (int64_t k = 0; k < inner; ++k)
    for (int64_t row = count; row < kPanelColumns; ++row) panel[k * kPanelColumns + row] = 0;
}

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
