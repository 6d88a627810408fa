#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "data/images/decoder.h"

namespace lockstep::data {
namespace {

constexpr png_alloc_size_t kMostChunkBytes = 16 << 20;  // of what is not pixels

struct PngReading {
  std::span<const uint8_t> file;
  size_t position = 0;
  char message[256] = {};
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto* reading = static_cast<PngReading*>(png_get_error_ptr(png));
  std::snprintf(reading->message, sizeof reading->message, "%s", message);
  png_longjmp(png, 1);
}

void on_warning(png_structp /*png*/, png_const_charp /*message*/) {}

void on_read(png_structp png, png_bytep to, size_t count) {
  auto* reading = static_cast<PngReading*>(png_get_io_ptr(png));
  const size_t left = reading->file.size() - reading->position;
  if (count > left) {
    reading->position = reading->file.size();
    png_error(png, "the end of the file");
  }
  std::memcpy(to, reading->file.data() + reading->position, count);
  reading->position += count;
}

/// Every image becomes red, green, blue and alpha bytes.
void ask_for_rgba(png_structp png) {
  png_set_expand(png);
  png_set_scale_16(png);
  png_set_gray_to_rgb(png);
  png_set_add_alpha(png, 0xff, PNG_FILLER_AFTER);
}

void lay_over(const uint8_t* rgba, int64_t pixels, uint8_t background, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i, rgba += 4, rgb += 3)
    for (int c = 0; c < 3; ++c)
      rgb[c] = static_cast<uint8_t>((rgba[c] * rgba[3] + background * (255 - rgba[3]) + 127) / 255);
}

void keep_row(const DecodeRequest& request, int64_t y, const uint8_t* row, uint8_t* rgb) {
  const Region& region = request.region;
  if (y < region.y || y >= region.y + region.height) return;
  lay_over(row + 4 * region.x, region.width, request.background, rgb + (y - region.y) * region.width * 3);
}

/// Only plain values live between setjmp and longjmp. `rows` has a row, or the whole image if it is
/// interlaced.
bool read_rows(png_structp png, png_infop info, PngReading& reading, const DecodeRequest& request,
               std::vector<uint8_t>& rows, uint8_t* rgb) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_read_info(png, info);
  const int64_t height = png_get_image_height(png, info), width = png_get_image_width(png, info);
  if (height != request.height || width != request.width) {
    std::snprintf(reading.message, sizeof reading.message, "%lldx%lld pixels instead of %lldx%lld",
                  static_cast<long long>(height), static_cast<long long>(width),
                  static_cast<long long>(request.height), static_cast<long long>(request.width));
    return false;
  }
  ask_for_rgba(png);
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  const int64_t row_bytes = 4 * width;
  rows.resize(static_cast<size_t>(passes > 1 ? row_bytes * height : row_bytes));
  const int64_t stride = passes > 1 ? row_bytes : 0;
  const int64_t end = passes > 1 ? height : request.region.y + request.region.height;
  for (int pass = 0; pass < passes; ++pass)
    for (int64_t y = 0; y < end; ++y) {
      png_read_row(png, rows.data() + y * stride, nullptr);
      if (pass == passes - 1) keep_row(request, y, rows.data() + y * stride, rgb);
    }
  return true;
}

}  // namespace

void decode_png(std::span<const uint8_t> file, const DecodeRequest& request, std::vector<uint8_t>& rgb) {
  thread_local std::vector<uint8_t> rows;
  rgb.resize(static_cast<size_t>(request.region.height * request.region.width) * 3);
  PngReading reading{.file = file};
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reading, on_error, on_warning);
  png_infop info = png != nullptr ? png_create_info_struct(png) : nullptr;
  bool decoded = false;
  if (info != nullptr) {
    png_set_user_limits(png, static_cast<png_uint_32>(request.width),
                        static_cast<png_uint_32>(request.height));
    png_set_chunk_malloc_max(png, kMostChunkBytes);
    // Of what else is in the file nothing changes a pixel, or needs to be whole.
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_set_read_fn(png, &reading, on_read);
    decoded = read_rows(png, info, reading, request, rows, rgb.data());
  } else {
    std::snprintf(reading.message, sizeof reading.message, "no memory for libpng");
  }
  png_destroy_read_struct(&png, &info, nullptr);
  if (!decoded)
    throw ImageDamage{static_cast<int64_t>(reading.position),
                      fmt::format("expected a PNG image of {}x{}, found: {}", request.height, request.width,
                                  reading.message)};
}

}  // namespace lockstep::data
