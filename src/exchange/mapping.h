#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/model.h"
#include "lockstep/tensor.h"

namespace lockstep::exchange {

/// A tensor of another program, which is a parameter here, or some rows of one.
struct Piece {
  std::string name;   ///< there
  Shape shape;        ///< there
  int64_t first = 0;  ///< of its elements in the parameter, where they follow each other
  Shape here = {};    ///< these elements as an array in lockstep's order; empty: `shape`
  std::vector<int>
      order;  ///< dimension k of the array there is dimension order[k] of `here`; empty: the same
  /// It may have more rows there, of which the first are meant: positions that a shorter context never sees.
  bool may_be_longer = false;

  bool is_as_here() const { return order.empty(); }
};

/// A piece whose elements lie there as here.
Piece as_here(std::string name, Shape shape, int64_t first = 0);
/// A matrix [rows, columns] here that is [columns, rows] there.
Piece transposed(std::string name, const Shape& here);
/// A weight of `conv2d`, [out, kh, kw, in] here and [out, in, kh, kw] there.
Piece channels_first(std::string name, const Shape& here);

/// A tensor of another program, whole, in its order, from the piece's elements here; and back.
/// REQUIRES: both have piece.shape.count() elements and do not overlap.
void to_there(const Piece& piece, const float* here, float* there);
void to_here(const Piece& piece, const float* there, float* here);

/// A tensor that is nothing new to a model: zeros for a bias that it does not have, or a second name of a
/// weight that two layers share. Written where another program needs it; checked where it is read.
struct Implied {
  std::string name;
  Shape shape;
  int parameter = -1;    ///< whose only piece it repeats; -1: zeros
  bool written = false;  ///< by an export
};

/// How another program stores the parameters of a model.
struct Mapping {
  std::string family;                      ///< "gpt2": see Family
  std::vector<std::vector<Piece>> pieces;  ///< of each parameter, in the order of the model's graph
  std::vector<Implied> implied;
  std::vector<std::string> worthless;  ///< ends of names of tensors that follow from the architecture
};

}  // namespace lockstep::exchange
