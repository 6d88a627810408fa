#pragma once

#include <vector>

#include "data/transforms/image.h"

namespace lockstep::data {

/// An image that lies in memory. Borrows its values and `room`, into which parts are copied.
class MemoryPixels : public PixelSource {
 public:
  MemoryPixels(const ImageShape& shape, const float* pixels, std::vector<float>& room)
      : shape_(shape), pixels_(pixels), room_(&room) {}
  ImageShape shape() const override { return shape_; }
  int64_t reduction(int64_t /*most*/) const override { return 1; }
  PixelView read(const Region& region, int64_t reduction) override;

 private:
  ImageShape shape_;
  const float* pixels_;
  std::vector<float>* room_;
};

}  // namespace lockstep::data
