#include <algorithm>

#include "data/images/decoder.h"
#include "data/images/image_file.h"
#include "data/images/image_header.h"
#include "data/images/image_writer.h"
#include "fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  const auto add = [&](const std::vector<uint8_t>& bytes) { all.emplace_back(bytes.begin(), bytes.end()); };
  for (const int64_t channels : {1, 3}) {
    const data::ImageShape shape{13, 17, channels};
    std::vector<uint8_t> pixels(static_cast<size_t>(shape.count()));
    for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * 7);
    add(data::png_bytes(shape, pixels));
    add(data::jpeg_bytes(shape, pixels));
    add(data::jpeg_bytes(shape, pixels, {.quality = 50, .subsampled = false, .progressive = true}));
  }
  // With an orientation.
  std::string turned = all[1];
  turned.insert(2, std::string("\xff\xe1\x00\x22"
                               "Exif\0\0"
                               "MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0",
                               36));
  all.push_back(turned);
  return all;
}

void parse(std::string_view bytes) {
  try {
    const data::ImageHeader header = data::read_image_header(data::ImageFile(file_of(bytes)));
    // Of a large image, a part: what is decoded otherwise takes its time, and says the same.
    constexpr int64_t kMost = 128;
    data::DecodeRequest request{.height = header.height, .width = header.width};
    request.region = {header.height > kMost ? header.height / 2 - kMost / 2 : 0,
                      header.width > kMost ? header.width / 2 - kMost / 2 : 0, std::min(kMost, header.height),
                      std::min(kMost, header.width)};
    constexpr int64_t kMostPixels = int64_t{1} << 22;
    if (header.height * header.width > kMostPixels) return;
    std::vector<uint8_t> rgb;
    const std::span file(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    (header.format == data::ImageFormat::jpeg ? data::decode_jpeg : data::decode_png)(file, request, rgb);
    if (header.format != data::ImageFormat::jpeg) return;
    request.reduction = 2;
    request.region = {0, 0, (header.height + 1) / 2, (header.width + 1) / 2};
    data::decode_jpeg(file, request, rgb);
  } catch (const data::ImageDamage&) {
  }
}

}  // namespace lockstep::fuzz
