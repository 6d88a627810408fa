#pragma once

#include <cstdint>

#include "device/device.h"
#include "lockstep/tensor.h"

namespace lockstep::ops {

/// A convolution's windows over one image, and the matrix of columns that makes it a product: a row for each
/// window, which holds the pixels under it as [kernel, kernel, channels], zero outside the image. Of several
/// groups each has a matrix of its own, with its channels; they follow each other.
struct Windows {
  int height = 0, width = 0, channels = 0;  ///< of the image
  int kernel = 0, stride = 0, padding = 0;
  int out_height = 0, out_width = 0;
  int groups = 1, dilation = 1;  ///< groups: divides channels

  int64_t per_image() const { return int64_t{out_height} * out_width; }
  int group_channels() const { return channels / groups; }
  int64_t row_length() const { return int64_t{kernel} * kernel * group_channels(); }
  int64_t columns_per_image() const { return groups * per_image() * row_length(); }
  /// Whether the images themselves are that matrix.
  bool are_pixels() const { return kernel == 1 && stride == 1 && padding == 0 && groups == 1; }
};

/// How many images to take at once so that what is made of them, `image_bytes` each, fits `budget` as far as
/// one image does: as few and as equal chunks of the batch as possible.
int64_t chunk_size(int64_t batch, int64_t image_bytes, int64_t budget);

/// columns [groups][images * per_image, row_length] from images [images, height, width, channels] of the same
/// type.
void images_to_columns(const Windows& windows, DType dtype, const void* images, int64_t count, void* columns,
                       device::Stream& stream);

/// Back again: each pixel becomes the sum of what float32 columns hold of it, in the order of the kernel's
/// elements, and is rounded once. Images are overwritten.
void columns_to_images(const Windows& windows, const float* columns, int64_t count, DType dtype, void* images,
                       device::Stream& stream);

}  // namespace lockstep::ops
