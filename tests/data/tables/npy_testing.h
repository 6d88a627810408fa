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

/// A file of 'version' 1 to 3 with the list of fields, or the type in quotes, as it stands in the header.
inline std::string npy_of_version(char version, const std::string& description, const std::string& shape,
                                  const std::string& records) {
  std::string header = "{'descr': " + description + ", 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(127, ' ');
  header += '\n';
  std::string bytes("\x93NUMPY", 6);
  bytes += version;
  bytes += '\0';
  bytes += '\x80';  // the header's 128 bytes, little-endian
  bytes += std::string(version == 1 ? 1 : 3, '\0');
  return bytes + header + records;
}

}  // namespace lockstep::test
