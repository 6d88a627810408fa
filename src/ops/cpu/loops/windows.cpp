#include "ops/cpu/loops/windows.h"

#include "ops/cpu/loops/loops.h"
#include "ops/cpu/loops/store_columns.h"
#include "ops/cpu/loops/tile_rows.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {
namespace {

// A tile of sums stays in registers: kTileRows windows, of kWide registers of columns each. Factors are read
// where they lie in the image, through a pointer for each window.
constexpr int64_t kWidest = 2;

template <int64_t kRows, int64_t kWide>
using Sums = Register[kRows][kWide];

template <int64_t kRows, int64_t kWide>
[[gnu::always_inline]] inline void clear(Sums<kRows, kWide>& sums) {
#pragma GCC unroll 12
  for (int64_t i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int64_t v = 0; v < kWide; ++v) sums[i][v] = Register{};
}

/// sums[i] += the chain of the `count` numbers from left[i] + begin on.
template <int64_t kRows, int64_t kWide>
[[gnu::always_inline]] inline const float* add_chain(Sums<kRows, kWide>& sums,
                                                     const float* const (&left)[kRows], int64_t begin,
                                                     int64_t count, const float* panel) {
  for (int64_t k = begin; k < begin + count; ++k, panel += kPanelColumns) {
    Register row[kWide];
#pragma GCC unroll 2
    for (int64_t v = 0; v < kWide; ++v) row[v] = load_register(panel + v * kRegisterLanes);
#pragma GCC unroll 12
    for (int64_t i = 0; i < kRows; ++i) {
      const Register factor = splat_register(left[i][k]);
#pragma GCC unroll 2
      for (int64_t v = 0; v < kWide; ++v) sums[i][v] = fused(factor, row[v], sums[i][v]);
    }
  }
  return panel;
}

template <int64_t kRows, int64_t kWide>
[[gnu::always_inline]] inline void load_sums(Sums<kRows, kWide>& sums, const float* result,
                                             const int64_t* to) {
#pragma GCC unroll 12
  for (int64_t i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int64_t v = 0; v < kWide; ++v) sums[i][v] = load_register(result + to[i] + v * kRegisterLanes);
}

template <int64_t kRows, int64_t kWide>
[[gnu::always_inline]] inline void find_windows(const WindowProduct& product, const int64_t* from,
                                                const float* (&left)[kRows]) {
#pragma GCC unroll 12
  for (int64_t i = 0; i < kRows; ++i) left[i] = product.image + from[i];
}

/// Some windows, and where their sums belong.
struct Tile {
  const int64_t *from, *to;
  int64_t column;  ///< the first
  float* result;   ///< of that column
};

/// One chain for each window, and the bias. (Functions of their own, so that no register is taken by what
/// surrounds them.)
template <int64_t kRows, int64_t kWide>
[[gnu::noinline]] void whole_tile(const WindowProduct& product, const Tile& tile) {
  const float* left[kRows];
  find_windows<kRows, kWide>(product, tile.from, left);
  const float* panel = product.panel + tile.column;
  Sums<kRows, kWide> sums;
  if (product.accumulate)
    load_sums<kRows, kWide>(sums, tile.result, tile.to);
  else
    clear<kRows, kWide>(sums);
  for (int64_t piece = 0; piece < product.pieces; ++piece)
    panel = add_chain<kRows, kWide>(sums, left, product.piece_offsets[piece], product.piece_length, panel);
  if (product.bias != nullptr)
#pragma GCC unroll 2
    for (int64_t v = 0; v < kWide; ++v) {
      const Register term = load_register(product.bias + tile.column + v * kRegisterLanes);
#pragma GCC unroll 12
      for (int64_t i = 0; i < kRows; ++i) sums[i][v] += term;
    }
#pragma GCC unroll 12
  for (int64_t i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int64_t v = 0; v < kWide; ++v)
      store_register(tile.result + tile.to[i] + v * kRegisterLanes, sums[i][v]);
}

/// Chains of `product.chain` numbers for each window, one after the other, each added to what is there, or
/// the first to 0.
template <int64_t kRows, int64_t kWide>
[[gnu::noinline]] void chains_tile(const WindowProduct& product, const Tile& tile) {
  const float* left[kRows];
  find_windows<kRows, kWide>(product, tile.from, left);
  const float* panel = product.panel + tile.column;
  bool is_first = !product.accumulate;
  for (int64_t piece = 0; piece < product.pieces; ++piece)
    for (int64_t k = 0; k < product.piece_length; k += product.chain) {
      Sums<kRows, kWide> sums;
      clear<kRows, kWide>(sums);
      panel = add_chain<kRows, kWide>(sums, left, product.piece_offsets[piece] + k, product.chain, panel);
#pragma GCC unroll 12
      for (int64_t i = 0; i < kRows; ++i)
#pragma GCC unroll 2
        for (int64_t v = 0; v < kWide; ++v) {
          float* to = tile.result + tile.to[i] + v * kRegisterLanes;
          store_register(to, (is_first ? Register{} : load_register(to)) + sums[i][v]);
        }
      is_first = false;
    }
}

template <int64_t kRows, int64_t kWide>
void window_tile(const WindowProduct& product, const Tile& tile) {
  product.chain == 0 ? whole_tile<kRows, kWide>(product, tile) : chains_tile<kRows, kWide>(product, tile);
}

template <int64_t kRows, int64_t kWide>
void window_rows(int64_t rows, const WindowProduct& product, const Tile& tile) {
  if (rows >= kRows)
    window_tile<kRows, kWide>(product, tile);
  else if constexpr (kRows > 1)
    window_rows<kRows - 1, kWide>(rows, product, tile);
}

}  // namespace

void window_product(const WindowProduct& product) {
  constexpr int64_t kColumns = kWidest * kRegisterLanes;
  alignas(64) float edge[kTileRows * kColumns];
  int64_t edge_rows[kTileRows];
  for (int64_t i = 0; i < kTileRows; ++i) edge_rows[i] = i * kColumns;
  for (int64_t row = 0; row < product.rows; row += kTileRows) {
    const int64_t rows = product.rows - row < kTileRows ? product.rows - row : kTileRows;
    for (int64_t column = 0; column < product.columns; column += kColumns) {
      const int64_t left = product.columns - column, columns = left < kColumns ? left : kColumns;
      const bool is_narrow = columns <= kRegisterLanes;
      const bool is_whole = columns == (is_narrow ? kRegisterLanes : kColumns);
      const int64_t* to = product.to + row;
      const Tile tile{product.from + row, is_whole ? to : edge_rows, column,
                      is_whole ? product.result + column : edge};
      if (!is_whole && product.accumulate)
        for (int64_t i = 0; i < rows; ++i)
          __builtin_memcpy(edge + edge_rows[i], product.result + to[i] + column,
                           static_cast<size_t>(columns) * 4);
      is_narrow ? window_rows<kTileRows, 1>(rows, product, tile)
                : window_rows<kTileRows, kWidest>(rows, product, tile);
      if (!is_whole)
        for (int64_t i = 0; i < rows; ++i)
          store_columns(product.result + to[i] + column, edge + edge_rows[i], columns);
    }
  }
}

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
