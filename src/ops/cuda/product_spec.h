#pragma once

#include <cstdint>
#include <string>

#include "lockstep/tensor.h"

namespace lockstep::ops {

/// To how many bytes pointers of tensors are aligned at the least: parameters in two bytes per element lie on
/// multiples of 32, everything else on 64. More than 16 is of no use to any load.
inline constexpr int kTensorAlignment = 16;

/// How pointers are aligned that lie multiples of `stride_bytes` after the start of a tensor.
int alignment_at(int64_t stride_bytes);

/// What is done to the sums, bias included, before they are rounded to the result's type if the library can.
/// `kept` is a matrix like C. gelu: kept = sum, C = gelu(sum). gelu_gradient: C = sum * gelu'(kept).
enum class Epilogue { none, gelu, gelu_gradient };

/// C = op(A) op(B); on request plus a bias in each row, or plus C itself, or through a GELU. All matrices
/// are row-major and dense; sums are float32.
struct ProductSpec {
  int64_t rows = 0, columns = 0,
          inner = 0;               ///< C is [rows, columns], op(A) [rows, inner], op(B) [inner, columns]
  bool transpose_a = false;        ///< A lies as [inner, rows]
  bool transpose_b = false;        ///< B lies as [columns, inner]
  DType factors = DType::float32;  ///< of A and B
  DType result = DType::float32;   ///< of C and of the bias [columns]: as the factors, or float32
  bool bias = false;
  /// But for none: two-byte factors and result, columns in multiples of 8, C aligned as tensors are;
  /// gelu_gradient has no bias.
  Epilogue epilogue = Epilogue::none;
  bool tf32 = false;  ///< float32 factors may be rounded to TF32
  int a_alignment = kTensorAlignment, b_alignment = kTensorAlignment,
      c_alignment = kTensorAlignment;  ///< bytes
  int64_t items = 1;
  bool shares_b = false;   ///< all items have the same B; otherwise these follow each other, too
  bool batchable = false;  ///< prefers algorithms that compute several items in a call, also for one item

  int64_t a_count() const { return rows * inner; }  ///< elements of an item
  int64_t b_count() const { return inner * columns; }
  int64_t c_count() const { return rows * columns; }
  /// The product of one of the items.
  ProductSpec of_one() const;
  /// Throws InternalError if the fields do not go together.
  void validate() const;
  /// Of libraries, to which a bias is one too.
  bool has_epilogue() const { return bias || epilogue != Epilogue::none; }
  ProductSpec without_epilogue() const;
  std::string to_string() const;  ///< "[64, 10] = [64, 784] x [10, 784]^T of bfloat16 with a bias, 8 times"
};

/// A matrix as cuBLASLt takes it: `rows` elements lie side by side, columns start `leading` elements apart.
struct ColumnMajorMatrix {
  int64_t rows = 0, columns = 0, leading = 0;
  bool transposed = false;
  DType dtype = DType::float32;
  int alignment = kTensorAlignment;
  bool operator==(const ColumnMajorMatrix&) const = default;
};

/// The same product in those terms: D = op(first) op(second), and the bias runs along D's rows.
struct ColumnMajorProduct {
  ColumnMajorMatrix first, second, result;
};
ColumnMajorProduct column_major(const ProductSpec& spec);

}  // namespace lockstep::ops
