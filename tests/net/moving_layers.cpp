#include <fmt/format.h>

#include "net/model_maker.h"

namespace lockstep::net {

/// The same elements in other dimensions, and back another time.
void ModelMaker::view() {
  const int64_t count = shape().count();
  if (shape().rank() > 1) {
    if (shape().rank() == 3 && draw_.percent(60)) {
      const Shape made{shape()[0] * shape()[1], shape()[2]};
      then("view", Reshape{fmt::format("{},-1", made[0])}, {last_}, made);
    } else {
      then("flat", Flatten{}, {last_}, {count});
    }
    return;
  }
  for (const int64_t factor : {2, 3, 5, 7})
    if (count % factor == 0 && draw_.percent(60)) {
      then("view", Reshape{fmt::format("{},{}", factor, count / factor)}, {last_}, {factor, count / factor});
      return;
    }
}

/// Of tokens: what is far apart meets in a product over all positions.
void ModelMaker::mix_positions() {
  const int64_t positions = sample_[0], channels = draw_.between(1, 3);
  if (shape().rank() != 2 || shape().count() > 100) return;
  then("flat", Flatten{}, {last_}, {shape().count()});
  linear(positions * channels);
  then("view", Reshape{fmt::format("{},{}", positions, channels)}, {last_}, {positions, channels});
}

/// The last value, which is a sequence, and perhaps a mask: some pixels of the image, of which dropout or
/// relu makes many 0. It has holes, and now and then it leaves nothing. Evaluations have masks of relu only,
/// which has a kink at 0, near which nothing is compared with the oracle.
std::vector<int> ModelMaker::masked_or_not() {
  const int sequence = last_;
  const int64_t positions = shape()[0], pixels = sample_.count();
  if (tokens_ || positions > pixels || draw_.percent(50)) return {sequence};
  last_ = 0;  // the image
  then("flat", Flatten{}, {last_}, {pixels});
  const int64_t begin = draw_.between(0, pixels - positions);
  then("slice", Slice{0, begin, begin + positions}, {last_}, {positions});
  const Op hole = draw_.percent(65) ? Op{Dropout{0.5f}} : Op{Relu{}};
  const int mask = then("mask", hole, {last_}, {positions});
  last_ = sequence;
  return {sequence, mask};
}

void ModelMaker::recurrence() {
  const Lstm op{.units = draw_.between(1, 5), .bidirectional = draw_.percent(40)};
  const Shape made{shape()[0], op.bidirectional ? 2 * op.units : op.units};
  then("lstm", op, masked_or_not(), made);
}

/// Of what is no text, which has a label for each position.
void ModelMaker::sequence_to_vector() {
  using enum SequencePoolKind;
  SequencePool op{.kind = draw_.of({mean, last, ends})};
  if (width() % 2 != 0 && op.kind == ends) op.kind = mean;
  const Shape made{width()};
  then("seqpool", op, masked_or_not(), made);
}

/// A part, two values one behind the other, dimensions in another order, a vector before others. Texts keep
/// their positions.
void ModelMaker::move_elements() {
  const Shape from = shape();
  if (tokens_ && from.rank() != 2) return;
  const auto with = [&](int axis, int64_t size) {
    std::vector<int64_t> dims = from.dims();
    dims[static_cast<size_t>(axis)] = size;
    return Shape(dims);
  };
  const int64_t axis = tokens_ ? from.rank() - 1 : draw_.below(from.rank());
  const int at_axis = static_cast<int>(axis);
  const int64_t size = from[at_axis], written = draw_.percent(50) ? axis : axis - from.rank();
  switch (draw_.weighted({2, 2, 2, 1})) {
    case 0: {
      if (size < 2) return;
      const int64_t begin = draw_.below(size - 1), end = begin + draw_.between(1, size - 1 - begin);
      then("slice", Slice{written, begin, end}, {last_}, with(at_axis, end - begin));
      return;
    }
    case 1: {
      std::vector<int> others = of_equal_shape(last_);
      if (draw_.percent(20) || others.empty()) others = {last_};
      if (2 * from.count() > kMostElements) return;
      then("concat", Concatenate{written}, {draw_.of(others), last_}, with(at_axis, 2 * size));
      return;
    }
    case 2:
      if (tokens_ || from.rank() < 2) return;
      if (from.rank() == 2)
        then("transpose", Transpose{"1,0"}, {last_}, {from[1], from[0]});
      else
        then("transpose", Transpose{"2,0,1"}, {last_}, {from[2], from[0], from[1]});
      return;
    default:
      if (tokens_ || from.rank() != 2) return;
      then("token", PrependToken{.init_std = draw_.of({0.0f, 0.3f})}, {last_}, {from[0] + 1, from[1]});
  }
}

}  // namespace lockstep::net
