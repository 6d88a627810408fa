#include "data/sheet.h"

#include <algorithm>
#include <cmath>

#include "base/index.h"
#include "data/font.h"

namespace lockstep::data {
namespace {

constexpr int64_t kGap = 4, kLine = kLetterHeight + 5, kReadable = 96;  // pixels

class Paper {
 public:
  Paper(int64_t height, int64_t width) : sheet_{{height, width, 3}, {}} {
    sheet_.pixels.assign(static_cast<size_t>(sheet_.shape.count()), 255);
  }

  void set(int64_t y, int64_t x, int channel, uint8_t value) {
    if (y >= 0 && x >= 0 && y < sheet_.shape.height && x < sheet_.shape.width)
      nth(sheet_.pixels, (y * sheet_.shape.width + x) * 3 + channel) = value;
  }

  void write(int64_t y, int64_t x, const std::string& text) {
    for (const char letter : text) {
      const auto columns = letter_columns(letter);
      for (int column = 0; column < kLetterWidth; ++column)
        for (int row = 0; row < 8; ++row)
          for (int channel = 0; channel < 3 && (nth(columns, column) >> row & 1) != 0; ++channel)
            set(y + row, x + column, channel, 0);
      x += kLetterWidth + 1;
    }
  }

  void paste(int64_t y, int64_t x, const ImageShape& shape, const std::vector<float>& picture,
             int64_t factor) {
    for (int64_t row = 0; row < shape.height * factor; ++row)
      for (int64_t column = 0; column < shape.width * factor; ++column)
        for (int channel = 0; channel < 3; ++channel) {
          const int64_t from = ((row / factor) * shape.width + column / factor) * shape.channels +
                               (shape.channels == 3 ? channel : 0);
          const float value = std::clamp(nth(picture, from), 0.0f, 1.0f);
          set(y + row, x + column, channel, static_cast<uint8_t>(std::lround(value * 255)));
        }
  }

  DrawnSheet finish() { return std::move(sheet_); }

 private:
  DrawnSheet sheet_;
};

}  // namespace

DrawnSheet draw_sheet(const Sheet& sheet) {
  const int64_t side = std::max<int64_t>(1, std::min(sheet.shape.height, sheet.shape.width));
  const int64_t factor = std::max<int64_t>(1, (kReadable + side - 1) / side);
  const int64_t height = sheet.shape.height * factor, width = sheet.shape.width * factor;
  size_t columns = 1, letters = 1;
  for (const auto& row : sheet.rows) {
    columns = std::max(columns, row.pictures.size());
    letters = std::max(letters, row.caption.size());
  }
  const auto pictures_wide = kGap + static_cast<int64_t>(columns) * (width + kGap);
  constexpr int64_t kMostLetters = 120;  // longer captions are cut
  const auto text_wide =
      2 * kGap + std::min(kMostLetters, static_cast<int64_t>(letters)) * (kLetterWidth + 1);
  Paper paper(kGap + static_cast<int64_t>(sheet.rows.size()) * (kLine + height + kGap),
              std::max(pictures_wide, text_wide));
  int64_t y = kGap;
  for (const auto& row : sheet.rows) {
    paper.write(y, kGap, row.caption);
    y += kLine;
    int64_t x = kGap;
    for (const auto& picture : row.pictures) {
      paper.paste(y, x, sheet.shape, picture, factor);
      x += width + kGap;
    }
    y += height + kGap;
  }
  return paper.finish();
}

}  // namespace lockstep::data
