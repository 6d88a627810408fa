#include <fmt/format.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "data/images/decoder.h"

// Behind the headers that it needs.
#include <jerror.h>
#include <jpeglib.h>

namespace lockstep::data {
namespace {

// A progressive image may have as many scans as it likes, each as much work as the whole image.
constexpr int kMostScans = 500;

struct JpegErrors {
  jpeg_error_mgr base;
  std::jmp_buf escape;
  char message[JMSG_LENGTH_MAX];
};

struct JpegProgress {
  jpeg_progress_mgr base;
};

[[noreturn]] void leave(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  errors->base.format_message(info, errors->message);
  std::longjmp(errors->escape, 1);
}

/// Warnings after which pixels are made up. Others leave the image as it was meant.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_ICC:
    case JWRN_JFIF_MAJOR:
    case JWRN_TOO_MUCH_DATA:
      return;
    default:
      leave(info);
  }
}

void limit_scans(j_common_ptr info) {
  auto* jpeg = reinterpret_cast<j_decompress_ptr>(info);
  if (jpeg->input_scan_number <= kMostScans) return;
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  std::snprintf(errors->message, sizeof errors->message, "more than %d scans", kMostScans);
  std::longjmp(errors->escape, 1);
}

/// Inverted CMYK, as Adobe's programs write it, or plain; the product of black and each color, rounded as
/// Pillow does.
void cmyk_to_rgb(const uint8_t* cmyk, int64_t pixels, bool inverted, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i, cmyk += 4, rgb += 3)
    for (int c = 0; c < 3; ++c) {
      const int color = inverted ? cmyk[c] : 255 - cmyk[c], black = inverted ? cmyk[3] : 255 - cmyk[3];
      const int product = (255 - color) * black + 128;
      rgb[c] = static_cast<uint8_t>(std::clamp(black - (((product >> 8) + product) >> 8), 0, 255));
    }
}

/// Columns that are decoded beside the region, so that smoothed colors at its ends are those of the whole
/// image.
constexpr int64_t kMargin = 32;

struct DecodedColumns {
  JDIMENSION begin, count;
};

/// Between setjmp and longjmp only plain values live here: nothing is left undestroyed.
bool decode(jpeg_decompress_struct& jpeg, JpegErrors& errors, std::span<const uint8_t> file,
            const DecodeRequest& request, uint8_t* row, uint8_t* rgb) {
  const Region& region = request.region;
  if (setjmp(errors.escape) != 0) return false;
  jpeg_mem_src(&jpeg, file.data(), file.size());
  jpeg_read_header(&jpeg, TRUE);
  if (jpeg.image_height != request.height || jpeg.image_width != request.width) {
    std::snprintf(errors.message, sizeof errors.message, "%ux%u pixels instead of %lldx%lld",
                  jpeg.image_height, jpeg.image_width, static_cast<long long>(request.height),
                  static_cast<long long>(request.width));
    return false;
  }
  const bool cmyk = jpeg.num_components == 4;
  jpeg.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  jpeg.dct_method = JDCT_ISLOW;  // the one whose bits are the same on all processors
  jpeg.do_fancy_upsampling = TRUE;
  jpeg.scale_num = 1;
  jpeg.scale_denom = static_cast<unsigned>(request.reduction);
  jpeg_start_decompress(&jpeg);
  DecodedColumns columns{static_cast<JDIMENSION>(std::max<int64_t>(0, region.x - kMargin)), 0};
  columns.count = static_cast<JDIMENSION>(
      std::min<int64_t>(jpeg.output_width, region.x + region.width + kMargin) - columns.begin);
  if (columns.count < jpeg.output_width) jpeg_crop_scanline(&jpeg, &columns.begin, &columns.count);
  // Some rows before the region, too: smoothing looks at neighbors.
  const auto skipped = static_cast<JDIMENSION>(std::max<int64_t>(0, region.y - kMargin));
  if (skipped > 0) jpeg_skip_scanlines(&jpeg, skipped);
  while (jpeg.output_scanline < region.y + region.height) {
    const int64_t y = jpeg.output_scanline;
    JSAMPROW rows[1] = {row};
    if (jpeg_read_scanlines(&jpeg, rows, 1) != 1) {
      std::snprintf(errors.message, sizeof errors.message, "no row %lld", static_cast<long long>(y));
      return false;
    }
    if (y < region.y) continue;
    const uint8_t* from = row + (region.x - columns.begin) * (cmyk ? 4 : 3);
    uint8_t* to = rgb + (y - region.y) * region.width * 3;
    if (cmyk)
      cmyk_to_rgb(from, region.width, jpeg.saw_Adobe_marker, to);
    else
      std::memcpy(to, from, static_cast<size_t>(region.width) * 3);
  }
  return true;
}

}  // namespace

void decode_jpeg(std::span<const uint8_t> file, const DecodeRequest& request, std::vector<uint8_t>& rgb) {
  thread_local std::vector<uint8_t> row;
  row.resize(static_cast<size_t>(request.width) * 4);
  rgb.resize(static_cast<size_t>(request.region.height * request.region.width) * 3);
  JpegErrors errors{};
  JpegProgress progress{};
  jpeg_decompress_struct jpeg{};
  jpeg.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = leave;
  errors.base.emit_message = on_message;
  progress.base.progress_monitor = limit_scans;
  jpeg_create_decompress(&jpeg);
  jpeg.progress = &progress.base;
  const bool decoded = decode(jpeg, errors, file, request, row.data(), rgb.data());
  const auto left = jpeg.src != nullptr ? static_cast<int64_t>(jpeg.src->bytes_in_buffer) : 0;
  jpeg_destroy_decompress(&jpeg);
  if (!decoded)
    throw ImageDamage{std::max<int64_t>(0, static_cast<int64_t>(file.size()) - left),
                      fmt::format("expected a JPEG image of {}x{}, found: {}", request.height, request.width,
                                  errors.message)};
}

}  // namespace lockstep::data
