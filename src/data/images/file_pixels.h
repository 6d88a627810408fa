#pragma once

#include <string>
#include <vector>

#include "data/images/decoder.h"
#include "data/images/image_header.h"
#include "data/transforms/image.h"

namespace lockstep::data {

/// What of a file's image is wanted.
struct PixelOptions {
  int64_t channels = 3;      ///< 1: gray, as Pillow's mode L: (19595 R + 38470 G + 7471 B + 32768) / 65536
  uint8_t background = 255;  ///< behind transparent pixels
  bool scaled_decoding = true;
};

/// A file in memory as an image: upright, and of the wanted channels. Borrows the file. read() throws
/// ImageDamage. Its memory is the calling thread's: one at a time.
class FilePixels : public PixelSource {
 public:
  FilePixels(const ImageHeader& header, std::span<const uint8_t> file, const PixelOptions& options)
      : header_(header), file_(file), options_(options) {}
  ImageShape shape() const override {
    return {header_.shown_height(), header_.shown_width(), options_.channels};
  }
  bool has_bytes() const override { return true; }
  int64_t reduction(int64_t most) const override;
  PixelView read(const Region& region, int64_t reduction) override;

 private:
  /// Of bytes that need no decoding.
  PixelView cut(const Region& region) const;

  ImageHeader header_;
  std::span<const uint8_t> file_;
  PixelOptions options_;
};

}  // namespace lockstep::data
