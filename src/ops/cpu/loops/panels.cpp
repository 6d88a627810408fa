#include "ops/cpu/loops/panels.h"

#include "ops/cpu/loops/loops.h"
#include "ops/cpu/loops/tile_rows.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {
namespace {

// A tile of sums stays in registers: kTileRows rows of two registers, as many as there are beside two of the
// panel and a factor. A panel is as many such tiles wide as it takes.
constexpr int64_t kTileRegisters = 2, kTileColumns = kTileRegisters * kRegisterLanes;
static_assert(kPanelColumns % kTileColumns == 0);
static_assert(kLeftRows % kTileRows == 0 && kTileRows % 2 == 0);

using Row = Register[kTileRegisters];

[[gnu::always_inline]] inline void load_row(Row& row, const float* from) {
#pragma GCC unroll 2
  for (int64_t v = 0; v < kTileRegisters; ++v) row[v] = load_register(from + v * kRegisterLanes);
}

/// sums[i] += left(i, k) row for all i. Element (i, k) of the left factor is at left[i * kRowStride].
template <int64_t kRows, int64_t kRowStride>
[[gnu::always_inline]] inline void add_terms(Row (&sums)[kRows], const float* left, const float* panel_row) {
  Row row;
  load_row(row, panel_row);
#pragma GCC unroll 12
  for (int64_t i = 0; i < kRows; ++i) {
    const Register factor = splat_register(left[i * kRowStride]);
#pragma GCC unroll 2
    for (int64_t v = 0; v < kTileRegisters; ++v) sums[i][v] = fused(factor, row[v], sums[i][v]);
  }
}

/// For all k, one after the other, which lie kInnerStride apart in the left factor.
template <int64_t kRows, int64_t kRowStride, int64_t kInnerStride>
[[gnu::always_inline]] inline void add_chain(Row (&sums)[kRows], const float* left, const float* panel,
                                             int64_t panel_stride, int64_t inner) {
  for (int64_t k = 0; k < inner; ++k, panel += panel_stride)
    add_terms<kRows, kRowStride>(sums, left + k * kInnerStride, panel);
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
  if (product.offsets == nullptr)
    add_chain<kRows, kLeftStride, 1>(sums, left, panel, product.panel_stride, product.inner);
  else
    for (int64_t k = 0; k < product.inner; ++k)
      add_terms<kRows, kLeftStride>(sums, left + k, panel + product.offsets[k]);
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
void replica_tile(const float* left, const float* panel, int64_t panel_stride, int64_t inner, float* to,
                  int64_t stride, bool add) {
  Row sums[kReplicas][kRows];
#pragma GCC unroll 2
  for (int64_t r = 0; r < kReplicas; ++r) clear(sums[r]);
  for (int64_t k = 0; k < inner; ++k)
#pragma GCC unroll 2
    for (int64_t r = 0; r < kReplicas; ++r) {
      const int64_t at = r * inner + k;
      add_chain<kRows, 1, kLeftRows>(sums[r], left + at * kLeftRows, panel + at * panel_stride, panel_stride,
                                     1);
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
void replica_block(const float* left, const float* panel, int64_t panel_stride, int64_t inner, const Slot& to,
                   bool add) {
  constexpr int64_t kRows = kTileRows / kReplicas;
  for (int64_t row = 0; row < kLeftRows; row += kRows)
    for (int64_t column = 0; column < kPanelColumns; column += kTileColumns)
      replica_tile<kReplicas, kRows>(left + row, panel + column, panel_stride, inner,
                                     to.data + row * to.stride + column, to.stride, add);
}

/// One chain, from 0 or from what `to` holds, for kRows rows of the left factor and one register of columns.
template <int64_t kRows>
void narrow_chain(const PanelFold& fold, const float* left, const float* panel, float* to, int64_t stride) {
  Register sums[kRows];
#pragma GCC unroll 12
  for (int64_t i = 0; i < kRows; ++i) sums[i] = fold.accumulate ? load_register(to + i * stride) : Register{};
  for (int64_t k = 0; k < fold.inner; ++k, left += kLeftRows, panel += fold.panel_stride) {
    const Register row = load_register(panel);
#pragma GCC unroll 12
    for (int64_t i = 0; i < kRows; ++i) sums[i] = fused(splat_register(left[i]), row, sums[i]);
  }
#pragma GCC unroll 12
  for (int64_t i = 0; i < kRows; ++i) store_register(to + i * stride, sums[i]);
}

/// The same for the panel's columns.
template <int64_t kRows>
void chain_block(const PanelFold& fold, const Slot& to) {
  constexpr int64_t kAtOnce = kRows < kTileRows ? kRows : kTileRows;
  for (int64_t row = 0; row < kRows; row += kAtOnce)
    for (int64_t column = 0; column < fold.columns; column += kTileColumns) {
      float* at = to.data + row * to.stride + column;
      if (fold.columns - column <= kRegisterLanes) {
        narrow_chain<kAtOnce>(fold, fold.left + row, fold.panel + column, at, to.stride);
        continue;
      }
      Row sums[kAtOnce];
      if (fold.accumulate)
        load_tile(sums, at, to.stride);
      else
        clear(sums);
      add_chain<kAtOnce, 1, kLeftRows>(sums, fold.left + row, fold.panel + column, fold.panel_stride,
                                       fold.inner);
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
  if (fold.replicas == 1) {
    const Slot to = slot(0);
    fold.rows <= 4   ? chain_block<4>(fold, to)
    : fold.rows <= 6 ? chain_block<6>(fold, to)
    : fold.rows <= 8 ? chain_block<8>(fold, to)
                     : chain_block<12>(fold, to);
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
      const float *left = fold.left + at * kLeftRows, *panel = fold.panel + at * fold.panel_stride;
      pair ? replica_block<2>(left, panel, fold.panel_stride, fold.inner, to, adds)
           : replica_block<1>(left, panel, fold.panel_stride, fold.inner, to, adds);
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

/// to[column][row] = from[row][column], of at most eight by eight.
template <int64_t kRows = 8, int64_t kColumns = 8>
void transpose_eight(float* to, int64_t to_stride, const float* from, int64_t from_stride) {
  Eight a[8] = {}, b[8];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kRows; ++i) __builtin_memcpy(&a[i], from + i * from_stride, kColumns * 4);
#pragma GCC unroll 4
  for (int64_t i = 0; i < 4; ++i) {
    b[2 * i] = __builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    b[2 * i + 1] = __builtin_shufflevector(a[2 * i], a[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 2
  for (int64_t i = 0; i < 2; ++i)
#pragma GCC unroll 2
    for (int64_t j = 0; j < 2; ++j) {
      a[4 * i + 2 * j] = __builtin_shufflevector(b[4 * i + j], b[4 * i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      a[4 * i + 2 * j + 1] =
          __builtin_shufflevector(b[4 * i + j], b[4 * i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 8
  for (int64_t j = 0; j < kColumns; ++j) {
    const Eight &left = a[j % 4], &right = a[j % 4 + 4];
    const Eight column = j < 4 ? __builtin_shufflevector(left, right, 0, 1, 2, 3, 8, 9, 10, 11)
                               : __builtin_shufflevector(left, right, 4, 5, 6, 7, 12, 13, 14, 15);
    __builtin_memcpy(to + j * to_stride, &column, kRows * 4);
  }
}

/// Likewise of fewer than eight rows.
template <int64_t kRows = 7>
void transpose_rows(int64_t rows, float* to, int64_t to_stride, const float* from, int64_t from_stride) {
  if (rows == kRows)
    transpose_eight<kRows, 8>(to, to_stride, from, from_stride);
  else if constexpr (kRows > 1)
    transpose_rows<kRows - 1>(rows, to, to_stride, from, from_stride);
}
/// Likewise of fewer than eight columns.
template <int64_t kColumns = 7>
void transpose_columns(int64_t columns, float* to, int64_t to_stride, const float* from,
                       int64_t from_stride) {
  if (columns == kColumns)
    transpose_eight<8, kColumns>(to, to_stride, from, from_stride);
  else if constexpr (kColumns > 1)
    transpose_columns<kColumns - 1>(columns, to, to_stride, from, from_stride);
}

}  // namespace

void transpose(float* to, int64_t to_stride, const float* from, int64_t from_stride, int64_t rows,
               int64_t columns, const float* bias) {
  const int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
  for (int64_t row = 0; row < whole_rows; row += 8) {
    const float* at = from + row * from_stride;
    for (int64_t column = 0; column < whole_columns; column += 8)
      transpose_eight(to + column * to_stride + row, to_stride, at + column, from_stride);
    if (whole_columns < columns)
      transpose_columns(columns - whole_columns, to + whole_columns * to_stride + row, to_stride,
                        at + whole_columns, from_stride);
  }
  if (whole_rows < rows) {
    const float* at = from + whole_rows * from_stride;
    for (int64_t column = 0; column < whole_columns; column += 8)
      transpose_rows(rows - whole_rows, to + column * to_stride + whole_rows, to_stride, at + column,
                     from_stride);
  }
  for (int64_t row = whole_rows; row < rows; ++row)
    for (int64_t column = whole_columns; column < columns; ++column)
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
