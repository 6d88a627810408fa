#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "data/test_files.h"
#include "data/transforms/image.h"

namespace lockstep::test {

// What scripts/make_image_goldens.py wrote.

inline std::string golden_path(const std::string& name) {
  return std::string(LOCKSTEP_DATA_GOLDENS) + "/" + name;
}

struct GoldenPixels {
  data::ImageShape shape;
  std::vector<float> values;
};

/// A line of transforms.txt, or of another file.
inline GoldenPixels golden_transform(const std::string& name, const std::string& from = "transforms.txt") {
  std::ifstream file(golden_path(from));
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name + " ")) continue;
    std::istringstream words(line.substr(name.size()));
    GoldenPixels golden;
    words >> golden.shape.height >> golden.shape.width >> golden.shape.channels;
    for (float value; words >> value;) golden.values.push_back(value);
    EXPECT_EQ(static_cast<int64_t>(golden.values.size()), golden.shape.count());
    return golden;
  }
  ADD_FAILURE() << "there is no golden " << name;
  return {};
}

/// A PPM of three channels; values are bytes.
inline GoldenPixels golden_ppm(const std::string& name) {
  std::ifstream file(golden_path("images/" + name), std::ios::binary);
  std::string magic, most;
  GoldenPixels golden;
  file >> magic >> golden.shape.width >> golden.shape.height >> most;
  golden.shape.channels = 3;
  file.get();
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), golden.shape.count()) << name;
  for (const char byte : bytes) golden.values.push_back(static_cast<float>(static_cast<uint8_t>(byte)));
  return golden;
}

}  // namespace lockstep::test
