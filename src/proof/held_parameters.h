#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "proof/check_world.h"
#include "tensor/part.h"

namespace lockstep::proof {

/// Consecutive bytes of a range in which consecutive elements of a parameter lie.
struct HeldRun {
  int parameter;       ///< index into ProgramWorld::parameters()
  size_t place;        ///< index into Program::parameters of its rank
  int64_t begin, end;  ///< within the range
  int64_t position;    ///< byte of the float32 parameter at `begin`

  /// The elements of a float32 parameter that these bytes touch.
  tensor::Part part() const {
    return tensor::Part::range(position / 4, (position + end - begin + 3) / 4 - position / 4);
  }
};

/// The parameters in a range of a rank's memory, according to its program.
class HeldParameters {
 public:
  explicit HeldParameters(const ProgramWorld& world);

  std::vector<HeldRun> in(int rank, const program::ByteRange& range) const;
  /// The same for copies of parameters in elements of `dtype`.
  std::vector<HeldRun> copies_in(int rank, const program::ByteRange& range, DType dtype) const;
  /// Of the range that a `serve` owns.
  std::vector<HeldRun> in_serve(int server, int serve) const;

 private:
  using Places = std::map<std::pair<int, int>, std::vector<size_t>>;  ///< by rank and buffer
  static std::span<const size_t> find(const Places& places, int rank, int buffer);
  /// Adds the runs of a place, whose held part begins at `offset` of the buffer.
  void add_runs(std::vector<HeldRun>& runs, int rank, size_t place, int64_t offset,
                const program::ByteRange& range, DType dtype) const;

  const ProgramWorld& world_;
  Places places_, copies_;
};

}  // namespace lockstep::proof
