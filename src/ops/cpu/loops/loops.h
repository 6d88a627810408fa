#pragma once

#include <cstdint>
#include <span>

#include "ops/elementwise.h"

namespace lockstep::ops {

struct AttentionForward;
struct AttentionBackward;

/// forward: to[i] = f(from[i]). backward: to[i] = f'(gradient[i], value[i]). Nothing overlaps.
struct ElementwiseLoops {
  void (*forward)(float* to, const float* from, int64_t count);
  void (*backward)(float* to, const float* gradient, const float* value, int64_t count);
};

/// What a layer norm knows of a row.
struct LayerNormRow {
  float mean, inverse_deviation;
  const float* weight;
  const float* bias;  ///< null: there is none
};

/// Of a row of `channels`. Nothing overlaps. The same for RMS norms, whose mean is 0, and whose variance the
/// mean square; their input gradient has no mean(g). With n = (x - mean) inverse and g = dy weight:
struct LayerNormLoops {
  void (*moments)(const float* x, int64_t channels, float* mean, float* variance);
  /// y = n weight + bias.
  void (*normalize)(float* y, const float* x, const LayerNormRow& row, int64_t channels);
  /// dx = inverse (g - mean(g) - n mean(g n)).
  void (*input_gradient)(float* dx, const float* dy, const float* x, const LayerNormRow& row,
                         int64_t channels);
  /// weight_sums += dy n, bias_sums += dy.
  void (*add_parameter_gradients)(float* weight_sums, float* bias_sums, const float* dy, const float* x,
                                  const LayerNormRow& row, int64_t channels);
};

/// Units of an LSTM at one position of a sample (ops/lstm.h). Gates i, f, g and o of all units follow each
/// other.
struct LstmForward {
  int64_t units;
  float* gates;              ///< in: the gates' sums
  const float* cell_before;  ///< [units]
  float *cell, *hidden;      ///< [units]: written
};
struct LstmBackward {
  int64_t units;
  const float *gates, *cell, *cell_before;
  const float *output_gradient, *hidden_gradient;  ///< of this position's reader; of the next position
  float* cell_gradient;                            ///< of the next position; then of the one before
  float* gate_gradients;                           ///< of the gates' sums: written
};

/// Of products of matrices: a panel is [inner][kPanelColumns], columns of the right factor side by side; what
/// stands where there is no column does not matter. Every element of a result is one chain of fused
/// multiply-adds in ascending order of the inner index, from 0 on, whatever stands beside it.
inline constexpr int64_t kPanelColumns = 32;
/// Of a left factor [rows][kLeftStride], whose inner indices are a block of at most kBlockInner: rows lie so
/// far apart that they do not meet in one set of a cache.
inline constexpr int64_t kBlockInner = 384, kLeftStride = kBlockInner + 16;
/// Of a left factor [inner][kLeftRows].
inline constexpr int64_t kLeftRows = 12;

/// result = left panel + bias.
struct PanelProduct {
  int64_t rows, columns,
      inner;          ///< columns: of the result, at most kPanelColumns; inner: at most kBlockInner
  const float* left;  ///< [rows][kLeftStride]
  const float* panel;
  int64_t panel_stride;  ///< from one inner index to the next
  const int64_t*
      offsets;  ///< where each inner index lies in the panel, in place of the stride; null: by that
  float* result;
  int64_t result_stride;
  bool accumulate;    ///< chains go on from what the result holds
  const float* bias;  ///< of the columns, added last; null: none. As wide as the panel
};

/// result = the sum over replicas of left panel, each of which has `inner` consecutive rows of both factors;
/// added along the canonical tree (layout/canonical_tree.h).
struct PanelFold {
  int64_t rows, columns, inner;  ///< rows: at most kLeftRows; columns: at most kPanelColumns
  int replicas;                  ///< at most 2^20
  const float* left;             ///< [replicas * inner][kLeftRows]
  const float* panel;
  int64_t panel_stride;  ///< from one row to the next
  float* result;
  int64_t result_stride;
  bool accumulate;  ///< of one replica: its chains go on from what the result holds
};

/// Products of a convolution: a row for each of some windows of an image, which lie in it as `pieces` of
/// `piece_length` numbers. Every element is one chain over its window, or the sum of chains of `chain`
/// numbers each.
struct WindowProduct {
  int64_t rows, columns;  ///< columns: at most kPanelColumns
  const float* image;
  const int64_t* from;  ///< of each row: where its window begins in the image
  int64_t pieces, piece_length;
  const int64_t* piece_offsets;  ///< from where the window begins
  int64_t chain;       ///< divides piece_length; 0: one chain over the window. REQUIRES: some piece if not 0
  const float* panel;  ///< [pieces * piece_length][kPanelColumns]
  float* result;
  const int64_t* to;  ///< of each row: where it begins in the result
  const float* bias;  ///< as of PanelProduct
};

/// Channels of a depthwise convolution, each by itself: from every window of some pixels in a row. Images,
/// gradients and weights may be read up to kChannelLanes numbers behind `channels`.
inline constexpr int64_t kChannelLanes = 16;
struct ChannelWindows {
  int64_t pixels, channels, places;
  const float* image;
  int64_t image_step;      ///< from one pixel's window to the next
  const int64_t* offsets;  ///< of each place, from where the window begins
};
/// result[pixel][channel] = chain over the places of image weight, plus bias; or the sum of the products,
/// each rounded.
struct ChannelProduct {
  ChannelWindows windows;
  const float* weight;  ///< [places][weight_step]
  int64_t weight_step;
  bool is_chain;
  float* result;
  int64_t result_step;
  const float* bias;  ///< [weight_step]; null: none
};
/// sums[place][channel] = chain over the pixels of gradient image, from what is there.
struct ChannelFold {
  ChannelWindows windows;
  const float* gradient;
  int64_t gradient_step;
  float* sums;  ///< [places][sums_step]; sums_step is at least `channels` in whole kChannelLanes
  int64_t sums_step;
};

/// The columns of a row-major matrix [rows, columns]. A row of few columns is shorter than a vector register,
/// so if `columns` is small several rows are taken as one: column c is then spread over `group` lanes.
struct ColumnLanes {
  static constexpr int64_t kMaxLanes = 64;
  int64_t columns, group, width;  ///< width = columns * group lanes

  explicit ColumnLanes(int64_t columns_)
      : columns(columns_), group(columns_ < kMaxLanes ? kMaxLanes / columns_ : 1), width(columns_ * group) {}
};

/// Of some rows of matrices; `mean` and what stands behind it have a number for each lane. Nothing overlaps.
struct ColumnLoops {
  /// sums[column] of x; of (x - mean)^2; of dy (x - mean): in an order that depends on the shape alone.
  void (*sum)(int64_t rows, const ColumnLanes& lanes, float* sums, const float* x);
  void (*squared_deviations)(int64_t rows, const ColumnLanes& lanes, float* sums, const float* x,
                             const float* mean);
  void (*products)(int64_t rows, const ColumnLanes& lanes, float* sums, const float* dy, const float* x,
                   const float* mean);
  /// y = (x - mean) scale + bias.
  void (*normalize)(int64_t rows, const ColumnLanes& lanes, float* y, const float* x, const float* mean,
                    const float* scale, const float* bias);
  /// dx = of_dy dy + of_x (x - mean) + constant.
  void (*input_gradient)(int64_t rows, const ColumnLanes& lanes, float* dx, const float* dy, const float* x,
                         const float* mean, const float* of_dy, const float* of_x, const float* constant);
};

/// The loops that take most of the time of trainings on CPUs, compiled once for each instruction set
/// (cmake/loops.cmake) and chosen when the program runs. All compute the same bits. Their sources call
/// nothing that the linker could merge with what was compiled for other processors: no standard library
/// beyond memcpy. Nor do they run anything before main, which every processor would have to run: what is in
/// other files is referred to, so that a table is constant. tests/ops/loops_objects_test.py looks at the
/// objects for both.
struct Loops {
  const char* instruction_set;

  void (*attention_forward)(const AttentionForward& head);
  void (*attention_backward)(const AttentionBackward& head);

  const ElementwiseLoops &relu, &gelu, &gelu_erf, &silu, &sigmoid, &tanh;
  const LayerNormLoops &layer_norm, &rms_norm;

  void (*lstm_forward)(const LstmForward& position);
  void (*lstm_backward)(const LstmBackward& position);

  const ColumnLoops& columns;
  /// sums[column] goes on with the chain of additions over the rows, which lie `columns` apart.
  void (*add_rows)(float* sums, const float* rows, int64_t count, int64_t columns);

  /// Sum of row[i]. The largest row[i], which may miss a NaN; count > 0.
  float (*row_sum)(const float* row, int64_t count);
  float (*row_maximum)(const float* row, int64_t count);
  /// Sum of exp(row[i] - offset).
  float (*exponential_sum)(const float* row, int64_t count, float offset);
  /// to[i] = exp(row[i] - offset) * factor.
  void (*scaled_exponentials)(float* to, const float* row, int64_t count, float offset, float factor);

  /// Factors of `groups` times four elements from element 4 first_group of `sample` on.
  void (*dropout_factors)(const DropoutMask& mask, uint32_t first_group, uint32_t sample, int64_t groups,
                          float* factors);

  void (*panel_product)(const PanelProduct& product);
  void (*panel_fold)(const PanelFold& fold);
  void (*window_product)(const WindowProduct& product);
  void (*channel_product)(const ChannelProduct& product);
  void (*channel_fold)(const ChannelFold& fold);
  /// A panel whose columns are rows: panel[k][i] = rows[i * row_stride + k], for `count` <= kPanelColumns
  /// rows, and zeros beyond.
  void (*pack_rows)(float* panel, const float* rows, int64_t row_stride, int64_t count, int64_t inner);
  /// to[column][row] = from[row][column] + bias[row]; null: none.
  void (*transpose)(float* to, int64_t to_stride, const float* from, int64_t from_stride, int64_t rows,
                    int64_t columns, const float* bias);

  /// Fused multiply-adds in registers alone, as many as a processor can do: returns their number. For
  /// measuring. Sixteen numbers, read and written, so that nothing is left out.
  int64_t (*multiply_adds)(int64_t iterations, float* numbers);
};

/// Those of the best instruction set that this processor has, or of the one that the environment variable
/// LOCKSTEP_INSTRUCTION_SET names, for comparing them. Throws ConfigError if this processor does not have
/// that.
const Loops& loops();

/// Those of all instruction sets that this processor has, the best first.
std::span<const Loops* const> all_loops();

}  // namespace lockstep::ops
