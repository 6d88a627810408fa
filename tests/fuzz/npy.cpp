#include "data/tables/npy.h"

#include "fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

std::string file_with(const std::string& header, size_t data_bytes) {
  std::string padded = header;
  while ((padded.size() + 11) % 64 != 0) padded += ' ';
  padded += '\n';
  const auto size = static_cast<uint16_t>(padded.size());
  return std::string("\x93NUMPY\1\0", 8) + static_cast<char>(size & 255) + static_cast<char>(size >> 8) +
         padded + std::string(data_bytes, '\1');
}

}  // namespace

std::vector<std::string> seeds() {
  return {
      file_with("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 24),
      file_with("{'descr': '<i8', 'fortran_order': True, 'shape': (3, 2), }", 48),
      file_with("{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }", 8),
      file_with("{'descr': [('a', '<f4'), ('', '|V2'), ('b', '<U2'), ('c', '|S3')], 'fortran_order': False, "
                "'shape': (2,), }",
                2 * 17)};
}

void parse(std::string_view bytes) {
  const data::NpyArray array(bytes, "input");
  for (int64_t row = 0; row < array.rows(); ++row)
    for (int64_t column = 0; column < array.columns(); ++column) {
      array.column_name(column);
      if (array.is_text(column))
        array.text(row, column);
      else
        array.value(row, column);
    }
}

}  // namespace lockstep::fuzz
