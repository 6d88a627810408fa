#include "data/images/image_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace lockstep::data {
namespace {

constexpr std::array<uint8_t, 8> kPngSignature{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

uint32_t png_number(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

/// Exactly as many bytes as `to` has, or damage.
void read_exactly(const ImageFile& file, int64_t offset, std::span<uint8_t> to, const char* what) {
  if (const int64_t got = file.read(offset, to); got < static_cast<int64_t>(to.size()))
    throw ImageDamage{offset + got, fmt::format("expected {}, found the end of the file", what)};
}

/// Frames of all kinds but SOF4, SOF8 and SOF12, which are other segments (ITU-T T.81, table B.1).
bool is_frame(uint8_t marker) {
  return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

void read_exif(const ImageFile& file, int64_t offset, int64_t length, ImageHeader& header) {
  static constexpr std::array<uint8_t, 6> kExif{'E', 'x', 'i', 'f', 0, 0};
  std::vector<uint8_t> segment(static_cast<size_t>(length));
  segment.resize(static_cast<size_t>(file.read(offset, segment)));
  if (segment.size() > kExif.size() && std::equal(kExif.begin(), kExif.end(), segment.begin()))
    header.orientation = exif_orientation(std::span(segment).subspan(kExif.size()));
}

/// What comes before the frame, or before the pixels, is a few dozen pieces. Whoever made more meant harm,
/// and each takes a call of the system.
constexpr int kMostPieces = 4096;
constexpr int kMostFillBytes = 4096;

void count_piece(int& pieces, int64_t offset, const char* what) {
  if (++pieces > kMostPieces)
    throw ImageDamage{offset, fmt::format("expected {} after at most {} others", what, kMostPieces)};
}

/// From `offset`, which is behind 0xff, to the last 0xff before the marker: fill bytes may come before it.
int64_t skip_fill_bytes(const ImageFile& file, int64_t offset) {
  std::array<uint8_t, kMostFillBytes> bytes{};
  const auto got = file.read(offset, bytes);
  const auto end = bytes.begin() + got;
  const auto marker = std::find_if(bytes.begin(), end, [](uint8_t byte) { return byte != 0xff; });
  if (marker == end)
    throw ImageDamage{offset + got, fmt::format("expected a JPEG marker within {} fill bytes", got)};
  return offset + (marker - bytes.begin()) - 1;
}

ImageHeader read_jpeg_header(const ImageFile& file) {
  ImageHeader header{.format = ImageFormat::jpeg};
  bool has_exif = false;
  int pieces = 0;
  for (int64_t offset = 2;;) {
    count_piece(pieces, offset, "a JPEG frame");
    std::array<uint8_t, 4> start{};
    read_exactly(file, offset, start, "a JPEG segment");
    if (start[0] != 0xff)
      throw ImageDamage{offset, fmt::format("expected a JPEG marker, 0xff, found 0x{:02x}", start[0])};
    if (start[1] == 0xff) {
      offset = skip_fill_bytes(file, offset + 1);
      continue;
    }
    const uint8_t marker = start[1];
    if (marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8)) {  // markers without a segment
      offset += 2;
      continue;
    }
    const int64_t length = int64_t{start[2]} << 8 | start[3];
    if (marker == 0xd9 || marker == 0xda || length < 2)
      throw ImageDamage{offset, fmt::format("expected a JPEG frame before segment 0x{:02x}", marker)};
    if (is_frame(marker)) {
      std::array<uint8_t, 5> frame{};
      read_exactly(file, offset + 4, frame, "a JPEG frame");
      header.height = int64_t{frame[1]} << 8 | frame[2];
      header.width = int64_t{frame[3]} << 8 | frame[4];
      if (header.height == 0 || header.width == 0)
        throw ImageDamage{offset + 5, fmt::format("expected an image of at least 1x1, found {}x{}",
                                                  header.height, header.width)};
      return header;
    }
    if (marker == 0xe1 && !has_exif) {
      read_exif(file, offset + 4, length - 2, header);
      has_exif = header.orientation != 1;
    }
    offset += 2 + length;
  }
}

ImageHeader read_png_header(const ImageFile& file) {
  ImageHeader header{.format = ImageFormat::png};
  int pieces = 0;
  for (int64_t offset = kPngSignature.size();;) {
    count_piece(pieces, offset, "the PNG chunk IDAT");
    std::array<uint8_t, 8> chunk{};
    if (file.read(offset, chunk) < static_cast<int64_t>(chunk.size())) break;
    const int64_t length = png_number(chunk.data());
    const std::string_view type(reinterpret_cast<const char*>(chunk.data() + 4), 4);
    if (offset == static_cast<int64_t>(kPngSignature.size())) {
      std::array<uint8_t, 8> size{};
      if (type != "IHDR" || length != 13)
        throw ImageDamage{offset, "expected the PNG chunk IHDR of 13 bytes, found another"};
      read_exactly(file, offset + 8, size, "the PNG chunk IHDR");
      header.width = png_number(size.data());
      header.height = png_number(size.data() + 4);
      if (header.height < 1 || header.width < 1 || header.height > INT32_MAX || header.width > INT32_MAX)
        throw ImageDamage{offset + 8, fmt::format("expected an image of at least 1x1, found {}x{}",
                                                  header.height, header.width)};
    } else if (type == "eXIf") {
      std::vector<uint8_t> tiff(static_cast<size_t>(std::min<int64_t>(length, 1 << 16)));
      tiff.resize(static_cast<size_t>(file.read(offset + 8, tiff)));
      header.orientation = exif_orientation(tiff);
    } else if (type == "IDAT" || type == "IEND") {
      return header;
    }
    offset += 12 + length;
  }
  if (header.width == 0)
    throw ImageDamage{file.size_bytes(), "expected the PNG chunk IHDR, found the end of the file"};
  return header;
}

}  // namespace

uint8_t exif_orientation(std::span<const uint8_t> tiff) {
  constexpr uint16_t kOrientation = 0x0112, kShort = 3;
  if (tiff.size() < 8) return 1;
  const bool little = tiff[0] == 'I';
  const auto number = [&](size_t at, size_t bytes) {
    uint32_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value |= uint32_t{tiff[at + i]} << 8 * (little ? i : bytes - 1 - i);
    return value;
  };
  if (number(2, 2) != 42) return 1;
  const size_t directory = number(4, 4);
  if (directory > tiff.size() || tiff.size() - directory < 2) return 1;
  const size_t entries = number(directory, 2);
  for (size_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + 12 * i;
    if (entry + 12 > tiff.size()) return 1;
    if (number(entry, 2) != kOrientation || number(entry + 2, 2) != kShort) continue;
    const uint32_t value = number(entry + 8, 2);
    return value >= 1 && value <= 8 ? static_cast<uint8_t>(value) : 1;
  }
  return 1;
}

ImageHeader read_image_header(const ImageFile& file) {
  std::array<uint8_t, 8> magic{};
  const int64_t got = file.read(0, magic);
  if (got >= 3 && magic[0] == 0xff && magic[1] == 0xd8 && magic[2] == 0xff) return read_jpeg_header(file);
  if (got == 8 && magic == kPngSignature) return read_png_header(file);
  throw ImageDamage{0, got == 0 ? "expected a JPEG or PNG image, found an empty file"
                                : "expected a JPEG or PNG image, found other bytes"};
}

}  // namespace lockstep::data
