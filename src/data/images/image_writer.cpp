#include "data/images/image_writer.h"

#include <fmt/format.h>
#include <png.h>

#include <cstdio>
#include <cstdlib>

#include "base/ensure.h"
#include "lockstep/error.h"

// Behind the headers that it needs.
#include <jpeglib.h>

namespace lockstep::data {
namespace {

void check_written_image(const ImageShape& shape, std::span<const uint8_t> pixels) {
  ensure(shape.count() > 0 && static_cast<int64_t>(pixels.size()) == shape.count() &&
             (shape.channels == 1 || shape.channels == 3),
         "an image that is written must have pixels, of 1 or 3 channels");
}

}  // namespace

std::vector<uint8_t> jpeg_bytes(const ImageShape& shape, std::span<const uint8_t> pixels,
                                const JpegOptions& options) {
  check_written_image(shape, pixels);
  ensure(shape.height <= JPEG_MAX_DIMENSION && shape.width <= JPEG_MAX_DIMENSION, "too large for a JPEG");
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);  // what is left to fail is memory, which ends the process
  jpeg_create_compress(&jpeg);
  unsigned char* data = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &data, &size);
  jpeg.image_height = static_cast<JDIMENSION>(shape.height);
  jpeg.image_width = static_cast<JDIMENSION>(shape.width);
  jpeg.input_components = static_cast<int>(shape.channels);
  jpeg.in_color_space = shape.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg.dct_method = JDCT_ISLOW;
  jpeg_set_quality(&jpeg, options.quality, TRUE);
  if (!options.subsampled) jpeg.comp_info[0].h_samp_factor = jpeg.comp_info[0].v_samp_factor = 1;
  if (options.progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  const int64_t row = shape.width * shape.channels;
  while (jpeg.next_scanline < jpeg.image_height) {
    JSAMPROW rows[1] = {const_cast<JSAMPROW>(pixels.data() + jpeg.next_scanline * row)};
    jpeg_write_scanlines(&jpeg, rows, 1);
  }
  jpeg_finish_compress(&jpeg);
  std::vector<uint8_t> bytes(data, data + size);
  jpeg_destroy_compress(&jpeg);
  std::free(data);
  return bytes;
}

std::vector<uint8_t> png_bytes(const ImageShape& shape, std::span<const uint8_t> pixels) {
  check_written_image(shape, pixels);
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.height = static_cast<png_uint_32>(shape.height);
  image.width = static_cast<png_uint_32>(shape.width);
  image.format = shape.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  const auto write = [&](void* to) {
    return png_image_write_to_memory(&image, to, &size, 0, pixels.data(), 0, nullptr) != 0;
  };
  std::vector<uint8_t> bytes;
  bool written = write(nullptr);  // asks for the size
  if (written) {
    bytes.resize(size);
    written = write(bytes.data());
  }
  if (!written)
    throw InternalError(
        fmt::format("libpng cannot write an image of {}: {}", shape.to_string(), image.message));
  bytes.resize(size);
  return bytes;
}

}  // namespace lockstep::data
