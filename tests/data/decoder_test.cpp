#include "data/images/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "data/golden_images.h"
#include "data/images/file_pixels.h"
#include "data/images/image_writer.h"
#include "data/transforms/resample.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using test::golden_ppm;
using test::GoldenPixels;
using test::TemporaryDirectory;

ImageHeader header_of(const std::string& path) { return read_image_header(ImageFile(path)); }

std::vector<fs::path> golden_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(test::golden_path("images")))
    if (entry.path().extension() != ".ppm") files.push_back(entry.path());
  return files;
}

TEST(Decoder, GivesPillowsPixelsOfEveryKindOfFile) {
  ASSERT_GE(golden_files().size(), 25u);
  for (const auto& path : golden_files()) {
    SCOPED_TRACE(path.filename().string());
    const auto bytes = test::read_file(path.string());
    const ImageHeader header = header_of(path.string());
    FilePixels source(header, bytes, {});
    const GoldenPixels golden = golden_ppm(path.stem().string() + ".ppm");
    ASSERT_EQ(source.shape(), golden.shape);
    const PixelView view = source.read({0, 0, golden.shape.height, golden.shape.width}, 1);
    for (size_t i = 0; i < golden.values.size(); ++i)
      ASSERT_NEAR(view.bytes[i], golden.values[i], 1) << "value " << i;
  }
}

TEST(Decoder, GivesPillowsGray) {
  const std::string path = test::golden_path("images/png_rgb.png");
  const auto bytes = test::read_file(path);
  FilePixels source(header_of(path), bytes, {.channels = 1});
  const GoldenPixels color = golden_ppm("png_rgb.ppm"), gray = golden_ppm("png_gray.ppm");
  const PixelView view = source.read({0, 0, color.shape.height, color.shape.width}, 1);
  EXPECT_EQ(view.shape.channels, 1);
  for (int64_t i = 0; i < color.shape.pixels(); ++i)
    ASSERT_EQ(view.bytes[i], gray.values[static_cast<size_t>(3 * i)]) << i;
}

std::vector<uint8_t> waves(const ImageShape& shape) {
  std::vector<uint8_t> pixels;
  for (int64_t y = 0; y < shape.height; ++y)
    for (int64_t x = 0; x < shape.width; ++x)
      for (int64_t c = 0; c < shape.channels; ++c)
        pixels.push_back(static_cast<uint8_t>(
            std::lround(127 + 120 * std::sin(0.05 * static_cast<double>((c + 1) * x + (3 - c) * y)))));
  return pixels;
}

/// A region is the same bytes, whether the rest is decoded or not.
TEST(Decoder, DecodesAPartLikeTheWhole) {
  const ImageShape shape{173, 211, 3};
  const auto pixels = waves(shape);
  for (const bool subsampled : {false, true})
    for (const bool progressive : {false, true})
      for (const int64_t reduction : {1, 2, 4, 8}) {
        const auto file = jpeg_bytes(shape, pixels, {.subsampled = subsampled, .progressive = progressive});
        const int64_t height = (shape.height + reduction - 1) / reduction,
                      width = (shape.width + reduction - 1) / reduction;
        std::vector<uint8_t> whole, part;
        decode_jpeg(file, {shape.height, shape.width, {0, 0, height, width}, reduction}, whole);
        for (const Region& share : {Region{0, 0, 1, 1}, Region{1, 2, 3, 4}, Region{60, 70, 30, 20},
                                    Region{90, 95, 10, 5}, Region{50, 0, 50, 100}, Region{0, 50, 100, 50}}) {
          const Region region{share.y * height / 100, share.x * width / 100,
                              std::max<int64_t>(1, share.height * height / 100),
                              std::max<int64_t>(1, share.width * width / 100)};
          decode_jpeg(file, {shape.height, shape.width, region, reduction}, part);
          for (int64_t y = 0; y < region.height; ++y)
            for (int64_t i = 0; i < region.width * 3; ++i)
              ASSERT_EQ(part[static_cast<size_t>(y * region.width * 3 + i)],
                        whole[static_cast<size_t>(((region.y + y) * width + region.x) * 3 + i)])
                  << subsampled << progressive << reduction << " row " << y << " value " << i;
        }
      }
}

TEST(Decoder, ScaledDecodingStaysNearTheWholeImageResized) {
  const ImageShape shape{160, 240, 3};
  const auto file = jpeg_bytes(shape, waves(shape), {.subsampled = false});
  const ImageHeader header{.format = ImageFormat::jpeg, .height = 160, .width = 240};
  const Window window = Window::of({10, 20, 120, 180}, 40, 60, ResizeFilter::bilinear);
  std::vector<float> exact(40 * 60 * 3), scaled(exact.size());
  ResampleScratch scratch;
  FilePixels with(header, file, {.scaled_decoding = true}), without(header, file, {.scaled_decoding = false});
  resample(with, window, scaled.data(), scratch);
  resample(without, window, exact.data(), scratch);
  EXPECT_NE(exact, scaled);
  double sum = 0;
  for (size_t i = 0; i < exact.size(); ++i) sum += std::abs(static_cast<double>(exact[i] - scaled[i]));
  EXPECT_LT(sum / static_cast<double>(exact.size()), 2.0 / 255);
}

TEST(Decoder, TurnsPartsOfTurnedImages) {
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const std::string name = "jpeg_exif" + std::to_string(orientation);
    const std::string path = test::golden_path("images/" + name + ".jpg");
    const auto bytes = test::read_file(path);
    FilePixels source(header_of(path), bytes, {});
    const GoldenPixels golden = golden_ppm(name + ".ppm");
    const Region region{3, 5, 9, 11};
    const PixelView view = source.read(region, 1);
    for (int64_t y = 0; y < region.height; ++y)
      for (int64_t i = 0; i < region.width * 3; ++i)
        ASSERT_NEAR(
            view.bytes[y * region.width * 3 + i],
            golden.values[static_cast<size_t>(((region.y + y) * golden.shape.width + region.x) * 3 + i)], 1)
            << orientation;
  }
}

/// What happens to a damaged file: nothing but damage, or pixels.
bool survives(const ImageHeader& header, const std::vector<uint8_t>& bytes) {
  try {
    FilePixels source(header, bytes, {});
    source.read({0, 0, header.shown_height(), header.shown_width()}, 1);
    return true;
  } catch (const ImageDamage& damage) {
    EXPECT_GE(damage.byte, 0);
    EXPECT_LE(damage.byte, static_cast<int64_t>(bytes.size()));
    EXPECT_NE(damage.what, "");
    return false;
  }
}

TEST(Decoder, NoticesTruncationAnywhere) {
  for (const char* name : {"jpeg_420.jpg", "jpeg_progressive.jpg", "png_rgba.png", "png_interlaced.png"}) {
    const std::string path = test::golden_path(std::string("images/") + name);
    const auto whole = test::read_file(path);
    const ImageHeader header = header_of(path);
    ASSERT_TRUE(survives(header, whole)) << name;
    // The last bytes end the file, and no row needs them.
    for (size_t size = 0; size + 40 < whole.size(); size += 7)
      EXPECT_FALSE(survives(header, {whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)}))
          << name << " of " << size;
  }
}

TEST(Decoder, OutlivesAnyChangedByte) {
  TemporaryDirectory directory;
  for (const auto& path : golden_files()) {
    const auto whole = test::read_file(path.string());
    const ImageHeader header = header_of(path.string());
    for (size_t i = 0; i < whole.size(); ++i) {
      auto changed = whole;
      changed[i] = static_cast<uint8_t>(changed[i] ^ (1u << i % 8));
      survives(header, changed);
      if (i % 5 != 0) continue;
      changed[i] = 0xff;
      survives(header, changed);
      test::write_file(directory / "changed", changed);
      try {
        header_of(directory / "changed");
      } catch (const ImageDamage& damage) {
        EXPECT_NE(damage.what, "");
      }
    }
  }
}

TEST(ImageHeader, KnowsFilesByTheirContent) {
  TemporaryDirectory directory;
  const auto found = [&](const std::vector<uint8_t>& bytes) {
    test::write_file(directory / "file", bytes);
    try {
      header_of(directory / "file");
    } catch (const ImageDamage& damage) {
      return std::pair(damage.byte, damage.what);
    }
    return std::pair(int64_t{-1}, std::string());
  };
  EXPECT_EQ(found({}).first, 0);
  EXPECT_EQ(found({'G', 'I', 'F', '8', '9', 'a', 0, 0, 0}).first, 0);
  EXPECT_EQ(found({0xff, 0xd8, 0xff}).first, 3);
  EXPECT_EQ(found({0xff, 0xd8, 0xff, 0xe0, 0, 16, 1}).first, 20);
  EXPECT_EQ(found({0xff, 0xd8, 0xff, 0xe0, 0, 1, 1}).first, 2);
  EXPECT_EQ(found(png_bytes({2, 3, 1}, std::vector<uint8_t>(6))).first, -1);
}

TEST(ImageHeader, ReadsOrientationsOfBothByteOrders) {
  const std::vector<uint8_t> little{'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, 6, 0, 0, 0};
  const std::vector<uint8_t> big{'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, 8, 0, 0};
  EXPECT_EQ(exif_orientation(little), 6);
  EXPECT_EQ(exif_orientation(big), 8);
  for (size_t size = 0; size < little.size(); ++size)
    EXPECT_EQ(exif_orientation(std::span(little).first(size)), 1) << size;
  auto wrong = little;
  wrong[18] = 9;
  EXPECT_EQ(exif_orientation(wrong), 1);
  wrong[4] = 0xff, wrong[7] = 0xff;
  EXPECT_EQ(exif_orientation(wrong), 1);
}

}  // namespace
}  // namespace lockstep::data
