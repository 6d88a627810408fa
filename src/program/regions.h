#pragma once

#include "program/program.h"

namespace lockstep::program {

/// The place of a range for comparisons: in its space once it is placed, in its buffer before.
struct Region {
  int index;  ///< below kSpaceCount: a space; kSpaceCount + b: buffer b, not placed
  int64_t begin, end;
};

inline int region_count(const Program& program) {
  return kSpaceCount + static_cast<int>(program.buffers.size());
}

inline Region region_of(const Program& program, const ByteRange& range) {
  const ProgramBuffer& buffer = program.buffer(range.buffer);
  const int64_t base = buffer.offset >= 0 ? buffer.offset : 0;
  return {buffer.offset >= 0 ? static_cast<int>(buffer.space) : kSpaceCount + range.buffer,
          base + range.offset, base + range.offset + range.size_bytes};
}

inline bool reads(Access access) { return access != Access::write; }
inline bool writes(Access access) { return access != Access::read; }

}  // namespace lockstep::program
