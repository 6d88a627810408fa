#include "data/digits.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/index.h"
#include "base/philox.h"
#include "data/byte_source.h"
#include "data/glyphs.h"
#include "data/idx.h"
#include "data/images/image_writer.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

// Bytes must not depend on the machine. So this file uses only what IEEE 754 rounds exactly (+ - * / sqrt
// floor), with contraction off, and no function of libm besides.

/// sin(2 pi turns) from its Taylor series on a quarter turn; good to 1e-7.
double sine(double turns) {
  double x = turns - std::floor(turns + 0.5);  // [-1/2, 1/2)
  if (x > 0.25) x = 0.5 - x;
  if (x < -0.25) x = -0.5 - x;
  const double angle = x * 6.283185307179586, square = angle * angle;
  return angle *
         (1 - square / 6 * (1 - square / 20 * (1 - square / 42 * (1 - square / 72 * (1 - square / 110)))));
}
double cosine(double turns) { return sine(turns + 0.25); }

/// The random numbers of one sample, in the order in which they are asked for.
class Draws {
 public:
  Draws(uint64_t seed, uint32_t part, uint32_t index) : seed_(seed), part_(part), index_(index) {}
  uint32_t word() {
    if (used_ == 4) {
      const Philox::Block counter{
          {block_++, index_, kStream + part_, static_cast<uint32_t>(RandomPurpose::data_generation)}};
      words_ = Philox::generate(counter, seed_);
      used_ = 0;
    }
    return words_.word[used_++];
  }
  double between(double low, double high) { return low + (high - low) * (word() * 0x1p-32); }
  /// Nearer to `middle` than to the ends: the mean of two uniform numbers.
  double around(double middle, double reach) {
    return middle + reach * (between(-0.5, 0.5) + between(-0.5, 0.5));
  }
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>((uint64_t{word()} * bound) >> 32); }

 private:
  static constexpr uint32_t kStream = 0x100;  // apart from the streams of synthetic.cpp
  uint64_t seed_;
  uint32_t part_, index_, block_ = 0;
  Philox::Block words_{};
  int used_ = 4;
};

struct Point {
  double x, y;
};

/// How one writer bends, slants, scales and places the glyph.
class Distortion {
 public:
  explicit Distortion(Draws& draws) {
    for (auto& wave : waves_) {
      wave.turns_x = draws.between(-1.1, 1.1);
      wave.turns_y = draws.between(-1.1, 1.1);
      wave.phase_x = draws.between(0, 1);
      wave.phase_y = draws.between(0, 1);
      wave.amplitude = draws.between(0, 0.055);
    }
    const double rotation = draws.around(0, 0.055), shear = draws.around(0.08, 0.4);
    const double width = draws.between(14, 23), height = draws.between(15.5, 22);
    const double c = cosine(rotation), s = sine(rotation);
    // Rotation after shear after scaling.
    xx_ = c * width;
    xy_ = -c * shear * height - s * height;
    yx_ = s * width;
    yy_ = -s * shear * height + c * height;
    x0_ = (kDigitSize - 1) / 2.0 + draws.around(0, 3.2);
    y0_ = (kDigitSize - 1) / 2.0 + draws.around(0, 3.2);
  }

  Point operator()(Point p) const {  // glyph box to pixels
    Point bent{p.x - 0.5, p.y - 0.5};
    for (const auto& wave : waves_) {
      const double turns = wave.turns_x * p.x + wave.turns_y * p.y;
      bent.x += wave.amplitude * sine(turns + wave.phase_x);
      bent.y += wave.amplitude * sine(turns + wave.phase_y);
    }
    return {x0_ + xx_ * bent.x + xy_ * bent.y, y0_ + yx_ * bent.x + yy_ * bent.y};
  }

 private:
  struct Wave {
    double turns_x, turns_y, phase_x, phase_y, amplitude;
  };
  std::array<Wave, 3> waves_{};
  double xx_, xy_, yx_, yy_, x0_, y0_;
};

using Coverage = std::array<double, kDigitSize * kDigitSize>;

/// Inks the pixels within `radius` of the segment from `a` to `b`, with an edge one pixel soft.
void ink_segment(Coverage& coverage, Point a, Point b, double radius) {
  const double reach = radius + 0.5;
  const int left = std::max(0, static_cast<int>(std::floor(std::min(a.x, b.x) - reach)));
  const int right = std::min(kDigitSize - 1, static_cast<int>(std::floor(std::max(a.x, b.x) + reach)) + 1);
  const int top = std::max(0, static_cast<int>(std::floor(std::min(a.y, b.y) - reach)));
  const int bottom = std::min(kDigitSize - 1, static_cast<int>(std::floor(std::max(a.y, b.y) + reach)) + 1);
  const double dx = b.x - a.x, dy = b.y - a.y;
  const double length_squared = dx * dx + dy * dy;
  for (int y = top; y <= bottom; ++y)
    for (int x = left; x <= right; ++x) {
      const double px = x - a.x, py = y - a.y;
      const double along =
          length_squared > 0 ? std::clamp((px * dx + py * dy) / length_squared, 0.0, 1.0) : 0.0;
      const double ox = px - along * dx, oy = py - along * dy;
      const double ink = std::min(1.0, reach - std::sqrt(ox * ox + oy * oy));
      double& pixel = nth(coverage, y * kDigitSize + x);
      pixel = std::max(pixel, ink);
    }
}

/// A pen that draws distorted lines, thicker and thinner along its way.
class Pen {
 public:
  Pen(Coverage& coverage, const Distortion& distortion, Draws& draws)
      : coverage_(coverage),
        distortion_(distortion),
        radius_(draws.between(0.65, 1.7)),
        variation_(draws.between(0, 0.35)),
        turns_(draws.between(0.2, 1.2)),
        phase_(draws.between(0, 1)) {}

  void draw(std::span<const PenMove> moves) {
    for (const auto& move : moves) {
      if (move.kind == PenMove::Kind::lift) {
        position_ = {move.x, move.y};
        down_ = true;
      } else if (move.kind == PenMove::Kind::line) {
        line_to({move.x, move.y});
      } else {
        constexpr int kPieces = 20;
        for (int i = 0; i <= kPieces; ++i) {
          const double turns = move.from + (move.to - move.from) * i / kPieces;
          const Point p{move.x + move.radius_x * cosine(turns), move.y + move.radius_y * sine(turns)};
          if (i > 0)
            segment_to(p);
          else if (down_)
            line_to(p);
          position_ = p;
          down_ = true;
        }
      }
    }
  }

 private:
  void line_to(Point to) {  // in pieces, so that a distorted line bends
    constexpr int kPieces = 6;
    const Point from = position_;
    for (int i = 1; i <= kPieces; ++i)
      segment_to({from.x + (to.x - from.x) * i / kPieces, from.y + (to.y - from.y) * i / kPieces});
  }
  void segment_to(Point to) {
    const double radius = radius_ * (1 + variation_ * sine(phase_ + turns_ * (to.x + to.y)));
    ink_segment(coverage_, distortion_(position_), distortion_(to), radius);
    position_ = to;
  }

  Coverage& coverage_;
  const Distortion& distortion_;
  double radius_, variation_, turns_, phase_;
  Point position_{};
  bool down_ = false;
};

/// Writes a file beside its place and renames it, so that nobody ever sees half of it.
void write_atomically(const std::string& path, const std::vector<uint8_t>& bytes, bool durable) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  const auto fail = [&](const char* what, int error) {
    std::remove(temporary.c_str());
    throw IoError(fmt::format("cannot {} {}: {}", what, path, std::strerror(error)));
  };
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) fail("write", errno);
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = write(file, bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      const int error = errno;
      close(file);
      fail("write", error);
    }
    done += static_cast<size_t>(wrote);
  }
  const bool synced = !durable || fsync(file) == 0;
  const int sync_error = errno;
  if (close(file) != 0 && synced) fail("write", errno);
  if (!synced) fail("write", sync_error);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) fail("rename the new", errno);
}

struct GeneratedFile {
  std::string path;
  std::vector<uint8_t> bytes;
};

std::vector<GeneratedFile> idx_files(const std::string& directory, const DigitsOptions& options) {
  std::vector<GeneratedFile> files;
  uint32_t part = 0;
  for (const auto& [name, count] : {std::pair{"train", options.train_count}, {"eval", options.eval_count}}) {
    constexpr size_t kPixels = kDigitSize * kDigitSize;
    std::vector<uint8_t> images(static_cast<size_t>(count) * kPixels), labels(static_cast<size_t>(count));
    for (size_t i = 0; i < labels.size(); ++i)
      labels[i] = static_cast<uint8_t>(draw_digit(options.seed, part, static_cast<uint32_t>(i),
                                                  std::span(images).subspan(i * kPixels, kPixels)));
    const int64_t image_dims[] = {count, kDigitSize, kDigitSize}, label_dims[] = {count};
    files.push_back(
        {path_in(directory, fmt::format("{}-images-idx3-ubyte", name)), idx_bytes(image_dims, images)});
    files.push_back(
        {path_in(directory, fmt::format("{}-labels-idx1-ubyte", name)), idx_bytes(label_dims, labels)});
    ++part;
  }
  return files;
}

std::vector<GeneratedFile> image_files(const std::string& directory, const DigitsOptions& options) {
  std::vector<GeneratedFile> files;
  uint32_t part = 0;
  for (const auto& [name, count] : {std::pair{"train", options.train_count}, {"eval", options.eval_count}}) {
    for (int digit = 0; digit < 10; ++digit)
      std::filesystem::create_directories(path_in(directory, fmt::format("{}/{}", name, digit)));
    for (int64_t i = 0; i < count; ++i) {
      int digit = 0;
      auto bytes = digit_jpeg(options.seed, part, static_cast<uint32_t>(i), digit);
      files.push_back({path_in(directory, fmt::format("{}/{}/{:06}.jpg", name, digit, i)), std::move(bytes)});
    }
    ++part;
  }
  return files;
}

}  // namespace

std::vector<uint8_t> digit_jpeg(uint64_t seed, uint32_t part, uint32_t index, int& digit) {
  std::array<uint8_t, kDigitSize * kDigitSize> ink{};
  digit = draw_digit(seed, part, index, ink);
  Draws draws(seed, part + 2, index);  // other numbers than those of the strokes
  const ImageShape shape{36 + draws.below(13), 36 + draws.below(13), 3};
  const int64_t top = draws.below(static_cast<uint32_t>(shape.height - kDigitSize + 1));
  const int64_t left = draws.below(static_cast<uint32_t>(shape.width - kDigitSize + 1));
  double paper[3], pen[3];
  for (int c = 0; c < 3; ++c) {
    paper[c] = draws.between(0, 110);
    pen[c] = draws.between(145, 255);
  }
  std::vector<uint8_t> pixels;
  for (int64_t y = 0; y < shape.height; ++y)
    for (int64_t x = 0; x < shape.width; ++x) {
      const bool inside = y >= top && y < top + kDigitSize && x >= left && x < left + kDigitSize;
      const double share = inside ? nth(ink, (y - top) * kDigitSize + x - left) / 255.0 : 0;
      for (int c = 0; c < 3; ++c)
        pixels.push_back(static_cast<uint8_t>(std::floor(paper[c] + share * (pen[c] - paper[c]) + 0.5)));
    }
  return jpeg_bytes(shape, pixels);
}

int draw_digit(uint64_t seed, uint32_t part, uint32_t index, std::span<uint8_t> pixels) {
  Draws draws(seed, part, index);
  const auto digit = static_cast<int>(draws.below(10));
  const auto glyphs = glyphs_of(digit);
  const auto glyph = glyphs[draws.below(static_cast<uint32_t>(glyphs.size()))];
  const Distortion distortion(draws);
  Coverage coverage{};
  Pen(coverage, distortion, draws).draw(glyph);

  const double ink = draws.between(150, 255), noise = draws.between(0, 40);
  uint32_t grain = 0;
  for (size_t i = 0; i < coverage.size(); ++i) {
    grain = i % 4 == 0 ? draws.word() : grain >> 8;  // a byte of noise for each pixel
    const double value = coverage[i] * ink + noise * ((grain & 0xff) / 256.0 - 0.5);
    pixels[i] = static_cast<uint8_t>(std::clamp(std::floor(value + 0.5), 0.0, 255.0));
  }
  return digit;
}

void generate_digits(const std::string& directory, const DigitsOptions& options) {
  constexpr int64_t kMost = 1'000'000;
  for (const int64_t count : {options.train_count, options.eval_count})
    require(count >= 1 && count <= kMost,
            fmt::format("digits: expected from 1 to {} samples, found {}", kMost, count));
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  if (failure) throw IoError(fmt::format("cannot make the folder {}: {}", directory, failure.message()));

  auto files = options.as_images ? image_files(directory, options) : idx_files(directory, options);
  std::erase_if(files, [&](const GeneratedFile& file) {
    std::error_code unknown;
    if (!std::filesystem::exists(file.path, unknown)) return false;
    if (read_all_bytes(file.path) == file.bytes) return true;
    if (!options.overwrite)
      throw DataError(
          fmt::format("{}: expected no such file or the digits of seed {} ({} to train, {} to evaluate), "
                      "found other content; choose another folder, or replace the files (--force)",
                      file.path, options.seed, options.train_count, options.eval_count));
    return false;
  });
  // Thousands of small files would wait for the disk thousands of times.
  for (const auto& file : files) write_atomically(file.path, file.bytes, /*durable=*/!options.as_images);
}

}  // namespace lockstep::data
