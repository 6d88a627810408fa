#include "exchange/mapping.h"

#include <utility>

#include "base/ensure.h"
#include "base/index.h"

namespace lockstep::exchange {
namespace {

/// Calls `visit(there, here)` with the two places of each element, ascending in `there`.
template <class Visit>
void for_each_element(const Piece& piece, const Visit& visit) {
  const auto& dims = piece.here.dims();
  const size_t rank = dims.size();
  std::vector<int64_t> strides_here(rank, 1), dims_there(rank), strides(rank), at(rank, 0);
  for (size_t d = rank; d-- > 1;) strides_here[d - 1] = strides_here[d] * dims[d];
  for (size_t k = 0; k < rank; ++k) {
    dims_there[k] = nth(dims, piece.order[k]);
    strides[k] = nth(strides_here, piece.order[k]);
  }
  const int64_t count = piece.here.count();
  int64_t here = 0;
  for (int64_t there = 0; there < count; ++there) {
    visit(there, here);
    for (size_t k = rank; k-- > 0;) {
      here += strides[k];
      if (++at[k] < dims_there[k]) break;
      here -= strides[k] * dims_there[k];
      at[k] = 0;
    }
  }
}

}  // namespace

Piece as_here(std::string name, Shape shape, int64_t first) {
  return {.name = std::move(name), .shape = std::move(shape), .first = first, .order = {}};
}

Piece transposed(std::string name, const Shape& here) {
  ensure(here.rank() == 2, "a matrix is transposed");
  return {.name = std::move(name), .shape = {here[1], here[0]}, .here = here, .order = {1, 0}};
}

Piece channels_first(std::string name, const Shape& here) {
  ensure(here.rank() == 4, "a weight of conv2d has four dimensions");
  return {.name = std::move(name),
          .shape = {here[0], here[3], here[1], here[2]},
          .here = here,
          .order = {0, 3, 1, 2}};
}

void to_there(const Piece& piece, const float* here, float* there) {
  for_each_element(piece,
                   [&](int64_t place_there, int64_t place_here) { there[place_there] = here[place_here]; });
}

void to_here(const Piece& piece, const float* there, float* here) {
  for_each_element(piece,
                   [&](int64_t place_there, int64_t place_here) { here[place_here] = there[place_there]; });
}

}  // namespace lockstep::exchange
