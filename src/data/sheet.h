#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/transforms/image.h"

namespace lockstep::data {

/// Pictures of one size in rows, each row under a line of text.
struct Sheet {
  struct Row {
    std::string caption;
    std::vector<std::vector<float>> pictures;  ///< values from 0, black, to 1
  };
  ImageShape shape;  ///< of every picture
  std::vector<Row> rows;
};

struct DrawnSheet {
  ImageShape shape;
  std::vector<uint8_t> pixels;  ///< red, green, blue
};

/// Draws all on white, small pictures larger. Of channels other than 1 and 3 the first one is drawn.
DrawnSheet draw_sheet(const Sheet& sheet);

}  // namespace lockstep::data
