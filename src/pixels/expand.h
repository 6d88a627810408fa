#pragma once

#include <cstddef>

#include "device/device.h"
#include "lockstep/tensor.h"
#include "pixels/packed_sample.h"

namespace lockstep::pixels {

/// Packed samples in a GPU's memory, one after the other, and the images that they become.
struct ExpandCall {
  PackedLayout layout;
  std::byte* samples = nullptr;  ///< aligned to 16 bytes; means of contrast are written into their steps
  int64_t count = 0;
  void* images = nullptr;        ///< [count, height, width, channels]
  DType dtype = DType::float32;  ///< of the images: float32, bfloat16 or float16
};

/// Does what is left to do, in the stream's order: the same bits as a processor. Throws DeviceError if the
/// program is linked to no GPU backend.
void expand_on_gpu(const ExpandCall& call, device::Stream& stream);

}  // namespace lockstep::pixels
