#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

struct DigitsOptions {
  int64_t train_count = 12000;
  int64_t eval_count = 2000;
  uint64_t seed = 1;
  bool overwrite = false;  ///< replace files that differ from what would be written
  bool as_images = false;  ///< a colored JPEG for each digit, in train/DIGIT/ and eval/DIGIT/
};

inline constexpr int kDigitSize = 28;  ///< pixels, in both directions

/// Writes a data set of drawn digits into `directory`, which is made if it is missing, in the format of the
/// MNIST files: train-images-idx3-ubyte, train-labels-idx1-ubyte, eval-images-idx3-ubyte and
/// eval-labels-idx1-ubyte. The same seed gives the same bytes on every machine. Existing files with these
/// bytes are kept; others are refused with DataError before anything is written, unless `overwrite` is set.
/// Each file appears whole or not at all.
void generate_digits(const std::string& directory, const DigitsOptions& options);

/// A digit as a JPEG of about 40 pixels in both directions, in two colors drawn from the same numbers, and
/// somewhere in it.
std::vector<uint8_t> digit_jpeg(uint64_t seed, uint32_t part, uint32_t index, int& digit);

/// Draws sample `index` of one part (0: train, 1: eval) into 28 x 28 pixels. Returns the digit.
int draw_digit(uint64_t seed, uint32_t part, uint32_t index, std::span<uint8_t> pixels);

}  // namespace lockstep::data
