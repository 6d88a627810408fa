#include "data/images/file_pixels.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/stage_clock.h"

namespace lockstep::data {
namespace {

/// EXIF's orientations, as what is done to the stored image: rows and columns are read backwards, then
/// exchanged.
struct Orientation {
  bool exchanges, rows_backwards, columns_backwards;
};
constexpr Orientation kOrientations[] = {{false, false, false}, {false, false, true}, {false, true, true},
                                         {false, true, false},  {true, false, false}, {true, true, false},
                                         {true, true, true},    {true, false, true}};

/// The region of a stored image of height x width that is shown as `shown`.
Region stored_region(const Region& shown, const Orientation& orientation, int64_t height, int64_t width) {
  Region stored = orientation.exchanges ? Region{shown.x, shown.y, shown.width, shown.height} : shown;
  if (orientation.rows_backwards) stored.y = height - stored.y - stored.height;
  if (orientation.columns_backwards) stored.x = width - stored.x - stored.width;
  return stored;
}

/// Copies pixels of three bytes into the order in which they are shown.
void turn(const std::vector<uint8_t>& stored, const Region& region, const Orientation& orientation,
          std::vector<uint8_t>& shown) {
  shown.resize(stored.size());
  const int64_t height = orientation.exchanges ? region.width : region.height;
  const int64_t width = orientation.exchanges ? region.height : region.width;
  uint8_t* to = shown.data();
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x, to += 3) {
      int64_t row = orientation.exchanges ? x : y, column = orientation.exchanges ? y : x;
      if (orientation.rows_backwards) row = region.height - 1 - row;
      if (orientation.columns_backwards) column = region.width - 1 - column;
      std::copy_n(stored.data() + (row * region.width + column) * 3, 3, to);
    }
}

void to_gray(std::vector<uint8_t>& pixels) {
  const size_t count = pixels.size() / 3;
  for (size_t i = 0; i < count; ++i)
    pixels[i] = static_cast<uint8_t>(
        (19595u * pixels[3 * i] + 38470u * pixels[3 * i + 1] + 7471u * pixels[3 * i + 2] + 32768u) >> 16);
}

}  // namespace

int64_t FilePixels::reduction(int64_t most) const {
  if (header_.format != ImageFormat::jpeg || !options_.scaled_decoding) return 1;
  return most >= 8 ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

PixelView FilePixels::cut(const Region& region) const {
  thread_local std::vector<uint8_t> part;
  const int64_t pixels = header_.height * header_.width, bytes = static_cast<int64_t>(file_.size());
  const int64_t channels = bytes / pixels;
  if (channels * pixels != bytes || (channels != 1 && channels != 3) || channels < options_.channels)
    throw ImageDamage{bytes, fmt::format("expected {}x{} pixels of {} channels, found {} bytes",
                                         header_.height, header_.width, options_.channels, bytes)};
  const auto row = static_cast<size_t>(header_.width * channels);
  const uint8_t* from = file_.data() + static_cast<size_t>(region.y) * row + region.x * channels;
  const PixelView view{.shape = {region.height, region.width, options_.channels}, .bytes = from};
  if (region.width == header_.width && channels == options_.channels) return view;
  const auto part_row = static_cast<size_t>(region.width * channels);
  part.resize(static_cast<size_t>(region.height) * part_row);
  for (size_t y = 0; y < static_cast<size_t>(region.height); ++y)
    std::copy_n(from + y * row, part_row, part.data() + y * part_row);
  if (channels != options_.channels) to_gray(part);
  return {.shape = view.shape, .bytes = part.data()};
}

PixelView FilePixels::read(const Region& region, int64_t reduction) {
  if (header_.format == ImageFormat::pixels) return cut(region);
  const StageTimer timer(DataStage::decode);
  thread_local std::vector<uint8_t> decoded, turned;
  const Orientation& orientation = kOrientations[header_.orientation - 1];
  const auto reduced = [&](int64_t size) { return (size + reduction - 1) / reduction; };
  const DecodeRequest request{
      .height = header_.height,
      .width = header_.width,
      .region = stored_region(region, orientation, reduced(header_.height), reduced(header_.width)),
      .reduction = reduction,
      .background = options_.background};
  (header_.format == ImageFormat::jpeg ? decode_jpeg : decode_png)(file_, request, decoded);
  const bool upright = header_.orientation == 1;
  if (!upright) turn(decoded, request.region, orientation, turned);
  auto& pixels = upright ? decoded : turned;
  if (options_.channels == 1) to_gray(pixels);
  return {.shape = {region.height, region.width, options_.channels}, .bytes = pixels.data()};
}

}  // namespace lockstep::data
