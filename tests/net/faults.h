#pragma once

// Engines that are wrong on purpose, for tests of the net alone: a test program that is linked with
// --wrap=<bind_segment> and --wrap=<ensure_calls> gets its segments' kernel calls, and their proof, through
// here (tests/net/CMakeLists.txt).

namespace lockstep::net {

enum class Fault {
  none,
  /// In halves of backward, a gradient that products of the segment have a part in, and another segment waits
  /// for, stays in memory of the halves' own: what zero_bubble did once.
  lost_gradient,
  left_out_call,        ///< a kernel call of the second micro-batch
  swapped_operand,      ///< backward of tanh and sigmoid reads the gradient for the output and the reverse
  overlapped_lifetime,  ///< two gradients of a segment share memory while both are needed
  forgotten_branch      ///< the gradient of a fork is that of its first reader
};

/// Of all ranks of this process and of its children, from the next program that is bound. Without
/// `proves_calls` nobody looks at kernel calls before they run.
void set_fault(Fault fault, bool proves_calls = true);

}  // namespace lockstep::net
