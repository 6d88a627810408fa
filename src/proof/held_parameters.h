#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "proof/check_world.h"

namespace lockstep::proof {

/// A part of a range in which a parameter of the rank lies.
struct HeldPart {
  int parameter;       ///< index into ProgramWorld::parameters()
  size_t place;        ///< index into Program::parameters of its rank
  int64_t begin, end;  ///< within the range
  int64_t position;    ///< byte of the float32 parameter at `begin`
};

/// The parameters in a range of a rank's memory, according to its program.
class HeldParameters {
 public:
  explicit HeldParameters(const ProgramWorld& world);

  std::vector<HeldPart> in(int rank, const program::ByteRange& range) const;
  /// The same for copies of parameters in elements of `dtype`.
  std::vector<HeldPart> copies_in(int rank, const program::ByteRange& range, DType dtype) const;
  /// Of the range that a `serve` owns.
  std::vector<HeldPart> in_serve(int server, int serve) const;

 private:
  using Places = std::map<std::pair<int, int>, std::vector<size_t>>;  ///< by rank and buffer
  static std::span<const size_t> find(const Places& places, int rank, int buffer);

  const ProgramWorld& world_;
  Places places_, copies_;
};

}  // namespace lockstep::proof
