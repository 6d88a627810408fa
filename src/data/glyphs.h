#pragma once

#include <span>

namespace lockstep::data {

/// A piece of a pen stroke, in a box from (0, 0), top left, to (1, 1): a line from the pen's position to (x,
/// y), or an arc of the ellipse around (x, y) between two angles in turns (0: right, 0.25: down). The pen
/// draws a straight line to the arc's beginning. `lift` starts a new stroke at the beginning of the piece.
struct PenMove {
  enum class Kind { lift, line, arc } kind;
  double x, y;
  double radius_x = 0, radius_y = 0;
  double from = 0, to = 0;
};

/// The ways in which people write `digit`. REQUIRES: 0 <= digit <= 9.
std::span<const std::span<const PenMove>> glyphs_of(int digit);

}  // namespace lockstep::data
