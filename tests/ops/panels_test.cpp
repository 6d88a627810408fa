// Products' loops of each instruction set that this processor has: all compute the same bits.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "ops/cpu/loops/loops.h"
#include "ops/replica_sums.h"

namespace lockstep::testing {
namespace {

using ops::kLeftRows;
using ops::kLeftStride;
using ops::kPanelColumns;
using Values = std::vector<float>;

float at(const Values& values, int64_t i) { return values[static_cast<size_t>(i)]; }

TEST(Panels, ProductsAreChainsThatGoOn) {
  for (const ops::Loops* loops : ops::all_loops())
    for (const int64_t rows : {1, 2, 5, 6, 7, 11, 12, 13, 25})
      for (const int64_t columns : {1, 16, 31, 32})
        for (const int64_t inner : {1, 37, 384}) {
          const Values left = random_floats(rows * kLeftStride, 1),
                       panel = random_floats(inner * kPanelColumns, 2),
                       bias = random_floats(kPanelColumns, 3), before = random_floats(rows * 40, 4);
          std::vector<int64_t> offsets;
          for (int64_t k = 0; k < inner; ++k) offsets.push_back((inner - 1 - k) * kPanelColumns);
          for (const bool goes_on : {false, true})
            for (const bool by_offsets : {false, true}) {
              Values result = before;
              loops->panel_product({.rows = rows,
                                    .columns = columns,
                                    .inner = inner,
                                    .left = left.data(),
                                    .panel = panel.data(),
                                    .panel_stride = kPanelColumns,
                                    .offsets = by_offsets ? offsets.data() : nullptr,
                                    .result = result.data(),
                                    .result_stride = 40,
                                    .accumulate = goes_on,
                                    .bias = goes_on ? bias.data() : nullptr});
              for (int64_t row = 0; row < rows; ++row)
                for (int64_t column = 0; column < 40; ++column) {
                  float expected = at(before, row * 40 + column);
                  if (column < columns) {
                    expected = chain(
                        0, inner,
                        [&](int64_t k) {
                          const int64_t from = by_offsets ? inner - 1 - k : k;
                          return std::pair(at(left, row * kLeftStride + k),
                                           at(panel, from * kPanelColumns + column));
                        },
                        goes_on ? expected : 0);
                    if (goes_on) expected += at(bias, column);
                  }
                  ASSERT_EQ(at(result, row * 40 + column), expected)
                      << loops->instruction_set << " " << rows << " x " << columns << " x " << inner << " at "
                      << row << ", " << column;
                }
            }
        }
}

TEST(Panels, WindowsAreChainsOrSumsOfThem) {
  constexpr int64_t kImage = 900, kPieces = 3, kPieceLength = 12, kChain = 4;
  constexpr int64_t kOffsets[kPieces] = {0, 50, 61};
  for (const ops::Loops* loops : ops::all_loops())
    for (const int64_t rows : {1, 2, 3, 5, 6, 7, 11, 12, 13, 25})
      for (const int64_t columns : {1, 3, 7, 8, 15, 16, 17, 31, 32})
        for (const auto& [chain_length, accumulates] :
             {std::pair{int64_t{0}, false}, std::pair{kChain, false}, std::pair{int64_t{0}, true},
              std::pair{kChain, true}}) {
          const Values image = random_floats(kImage, 1),
                       panel = random_floats(kPieces * kPieceLength * kPanelColumns, 2),
                       bias = random_floats(kPanelColumns, 3), before = random_floats(rows * 40, 4);
          std::vector<int64_t> from, to;
          for (int64_t row = 0; row < rows; ++row) {
            from.push_back(row * 7 % 300 + row);
            to.push_back((rows - 1 - row) * 40);
          }
          Values result = before;
          loops->window_product({.rows = rows,
                                 .columns = columns,
                                 .image = image.data(),
                                 .from = from.data(),
                                 .pieces = kPieces,
                                 .piece_length = kPieceLength,
                                 .piece_offsets = kOffsets,
                                 .chain = chain_length,
                                 .accumulate = accumulates,
                                 .panel = panel.data(),
                                 .result = result.data(),
                                 .to = to.data(),
                                 .bias = chain_length == 0 ? bias.data() : nullptr});
          const auto sum_of = [&](int64_t row, int64_t column) {
            const auto term = [&](int64_t k) {
              return std::pair(
                  at(image, from[static_cast<size_t>(row)] + kOffsets[k / kPieceLength] + k % kPieceLength),
                  at(panel, k * kPanelColumns + column));
            };
            constexpr int64_t kAll = kPieces * kPieceLength;
            float sum = accumulates ? at(before, to[static_cast<size_t>(row)] + column) : 0;
            if (chain_length == 0) return chain(0, kAll, term, sum) + at(bias, column);
            for (int64_t k = 0; k < kAll; k += kChain) sum += chain(k, k + kChain, term);
            return sum;
          };
          for (int64_t row = 0; row < rows; ++row)
            for (int64_t column = 0; column < 40; ++column) {
              const int64_t place = to[static_cast<size_t>(row)] + column;
              ASSERT_EQ(at(result, place), column < columns ? sum_of(row, column) : at(before, place))
                  << loops->instruction_set << " " << rows << " x " << columns << " at " << row << ", "
                  << column;
            }
        }
}

TEST(Panels, FoldsAddReplicasAlongTheTree) {
  for (const ops::Loops* loops : ops::all_loops())
    for (int replicas = 1; replicas <= 17; ++replicas)
      for (const auto& [rows, columns, inner] : {std::tuple<int64_t, int64_t, int64_t>(12, 32, 3),
                                                 {12, 32, 60},
                                                 {5, 32, 8},
                                                 {12, 9, 1},
                                                 {1, 1, 50}}) {
        const int64_t all = replicas * inner;
        const Values left = random_floats(all * kLeftRows, 1), panel = random_floats(all * kPanelColumns, 2);
        Values result(static_cast<size_t>(rows * 33), 0.25f);
        loops->panel_fold({.rows = rows,
                           .columns = columns,
                           .inner = inner,
                           .replicas = replicas,
                           .left = left.data(),
                           .panel = panel.data(),
                           .panel_stride = kPanelColumns,
                           .result = result.data(),
                           .result_stride = 33,
                           .accumulate = false});
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t column = 0; column < 33; ++column) {
            const float expected = column >= columns ? 0.25f : tree_sum(0, replicas, [&](int replica) {
              return chain(replica * inner, (replica + 1) * inner, [&](int64_t k) {
                return std::pair(at(left, k * kLeftRows + row), at(panel, k * kPanelColumns + column));
              });
            });
            ASSERT_EQ(at(result, row * 33 + column), expected)
                << loops->instruction_set << " " << replicas << " replicas, " << rows << " x " << columns
                << " at " << row << ", " << column;
          }
      }
}

TEST(Panels, TransposesEveryShape) {
  for (const ops::Loops* loops : ops::all_loops())
    for (int64_t rows = 1; rows <= 19; ++rows)
      for (int64_t columns = 1; columns <= 19; ++columns) {
        const Values from = random_floats(rows * 21, 1), bias = random_floats(rows, 2);
        Values to(static_cast<size_t>(columns * 23), -7.0f);
        loops->transpose(to.data(), 23, from.data(), 21, rows, columns, bias.data());
        for (int64_t column = 0; column < columns; ++column)
          for (int64_t row = 0; row < 23; ++row)
            ASSERT_EQ(at(to, column * 23 + row),
                      row < rows ? at(from, row * 21 + column) + at(bias, row) : -7.0f)
                << loops->instruction_set << " " << rows << " x " << columns;
      }
}

TEST(Panels, PacksRowsAndZerosBeyond) {
  for (const ops::Loops* loops : ops::all_loops())
    for (const int64_t count : {1, 7, 8, 31, 32})
      for (const int64_t inner : {1, 8, 13}) {
        const Values rows = random_floats(count * 15, 1);
        Values panel(static_cast<size_t>(inner * kPanelColumns), std::numeric_limits<float>::quiet_NaN());
        loops->pack_rows(panel.data(), rows.data(), 15, count, inner);
        for (int64_t k = 0; k < inner; ++k)
          for (int64_t row = 0; row < kPanelColumns; ++row)
            ASSERT_EQ(at(panel, k * kPanelColumns + row), row < count ? at(rows, row * 15 + k) : 0.0f);
      }
}

}  // namespace
}  // namespace lockstep::testing
