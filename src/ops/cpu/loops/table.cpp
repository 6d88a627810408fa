#include "ops/cpu/loops/channels.h"
#include "ops/cpu/loops/columns.h"
#include "ops/cpu/loops/elementwise.h"
#include "ops/cpu/loops/heads.h"
#include "ops/cpu/loops/loops.h"
#include "ops/cpu/loops/lstm.h"
#include "ops/cpu/loops/multiply_adds.h"
#include "ops/cpu/loops/normalization.h"
#include "ops/cpu/loops/panels.h"
#include "ops/cpu/loops/windows.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {

// Declared first, or what is constant is local to this file.
extern const Loops kLoops;

constinit const Loops kLoops {
#if defined(__AVX512F__)
  .instruction_set = "AVX-512",
#elif defined(__AVX2__) && defined(__FMA__)
  .instruction_set = "AVX2",
#else
  .instruction_set = "portable",
#endif
  .attention_forward = attention_forward, .attention_backward = attention_backward, .relu = kReluLoops,
  .gelu = kGeluLoops, .gelu_erf = kGeluErfLoops, .silu = kSiluLoops, .sigmoid = kSigmoidLoops,
  .tanh = kTanhLoops, .relu_backward_of_two = relu_backward_of_two, .layer_norm = kLayerNormLoops,
  .rms_norm = kRmsNormLoops, .lstm_forward = lstm_forward, .lstm_backward = lstm_backward,
  .columns = kColumnLoops, .add_rows = add_rows, .row_sum = sum_of_row, .row_maximum = largest_of_row,
  .exponential_sum = exponential_sum, .scaled_exponentials = scaled_exponentials,
  .dropout_factors = dropout_factors, .panel_product = panel_product, .panel_fold = panel_fold,
  .window_product = window_product, .channel_product = channel_product, .channel_fold = channel_fold,
  .pack_rows = pack_rows, .transpose = transpose, .multiply_adds = multiply_adds,
};

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
