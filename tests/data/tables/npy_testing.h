#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::test {

/// A file as NumPy writes it, with a header of 128 bytes.
template <class T>
std::string npy_bytes(const std::string& type, const std::string& shape, const std::vector<T>& values,
                      const std::string& fortran = "False") {
  std::string header =
      "{'descr': '" + type + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
  header.resize(117, ' ');
  header += '\n';
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header +
         std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

}  // namespace lockstep::test
