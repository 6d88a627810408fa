#pragma once

#include <vector>

#include "program/operand_binding.h"
#include "program/segment_code.h"

namespace lockstep::program {

/// The kernel calls of an instruction that runs a segment, in order, on the memory of its operands. Throws
/// InternalError if these do not fit the segment (SegmentInterface). REQUIRES: runs_segment.
std::vector<KernelCall> bind_segment(const OperandBinding& operands, const ModelCode& model);

}  // namespace lockstep::program
