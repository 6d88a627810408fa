#include "data/transforms/chain.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/transforms/color.h"
#include "data/transforms/memory_pixels.h"
#include "lockstep/error.h"
#include "pixels/formulas.h"

namespace lockstep::data {
namespace {

void read_whole(PixelSource& source, float* out) {
  const ImageShape shape = source.shape();
  const PixelView view = source.read({0, 0, shape.height, shape.width}, 1);
  if (view.floats != nullptr) {
    std::copy_n(view.floats, shape.count(), out);
    return;
  }
  for (int64_t i = 0; i < shape.count(); ++i) out[i] = pixels::value_of(view.bytes[i]);
}

std::unique_ptr<const Transform> make_transform(const MixupOptions& /*options*/) {
  throw ConfigError("mixup mixes two samples, but this list may only change one; use it in data.transforms");
}
std::unique_ptr<const Transform> make_transform(const CutmixOptions& /*options*/) {
  throw ConfigError("cutmix mixes two samples, but this list may only change one; use it in data.transforms");
}

}  // namespace

PixelView MemoryPixels::read(const Region& region, int64_t /*reduction*/) {
  const ImageShape shape{region.height, region.width, shape_.channels};
  if (shape == shape_) return {.shape = shape_, .floats = pixels_};
  room_->resize(static_cast<size_t>(shape.count()));
  const int64_t row = region.width * shape_.channels;
  for (int64_t y = 0; y < region.height; ++y)
    std::copy_n(pixels_ + ((region.y + y) * shape_.width + region.x) * shape_.channels, row,
                room_->data() + y * row);
  return {.shape = shape, .floats = room_->data()};
}

TransformChain::TransformChain(std::span<const TransformOptions> options, uint32_t first_place)
    : first_place_(first_place) {
  constexpr size_t kMost = 256;  // places that draws know
  require(first_place + options.size() <= kMost,
          fmt::format("data.transforms: expected at most {}, found {}", kMost, first_place + options.size()));
  for (const auto& each : options)
    transforms_.push_back(std::visit([](const auto& kind) { return make_transform(kind); }, each));
}

const Transform* TransformChain::random() const {
  const auto found = std::ranges::find_if(transforms_, [](const auto& each) { return each->is_random(); });
  return found == transforms_.end() ? nullptr : found->get();
}

ImageShape TransformChain::output(ImageShape input) const {
  for (const auto& transform : transforms_) input = transform->output(input);
  return input;
}

size_t TransformChain::leading_windows() const {
  const auto end = std::ranges::find_if(transforms_, [](const auto& each) { return !each->is_window(); });
  return static_cast<size_t>(end - transforms_.begin());
}

void TransformChain::require_tail() const {
  if (leading_windows() > 0)
    throw ConfigError(
        fmt::format("{} stands behind the mixing of samples, but GPUs change images of bytes "
                    "that were cut out and resized before; move it to the front",
                    transforms_.front()->name()));
}

ChainTail TransformChain::tail(const ImageShape& image) const {
  ChainTail tail;
  const size_t first = leading_windows();
  for (size_t i = first; i < transforms_.size(); ++i) {
    const Transform& transform = *transforms_[i];
    const auto count = transform.step_count(image);
    if (!count)
      throw ConfigError(
          transform.is_window()
              ? fmt::format("{} stands behind {}, but GPUs change images of bytes that were cut out and "
                            "resized before; move it to the front",
                            transform.name(), transforms_[first]->name())
              : fmt::format("{} cannot be done by GPUs; remove it", transform.name()));
    tail.steps += *count;
    tail.sums |= transform.sums();
  }
  return tail;
}

void TransformChain::pack(const SampleKey& key, PixelSource& source, uint8_t* out, pixels::Step* steps,
                          TransformScratch& scratch) const {
  const ImageShape image = output(source.shape());
  scratch.packed.resize(static_cast<size_t>(image.count()));
  apply_first(leading_windows(), key, source, scratch.packed.data(), scratch);
  to_bytes(image.count(), scratch.packed.data(), out);
  write_tail(key, image, steps);
}

void TransformChain::write_tail(const SampleKey& key, const ImageShape& image, pixels::Step* steps) const {
  for (size_t i = leading_windows(); i < transforms_.size(); ++i) {
    transforms_[i]->write_steps(draws(key, i), image, steps);
    steps += transforms_[i]->step_count(image).value_or(0);
  }
}

void TransformChain::apply_first(size_t end, const SampleKey& key, PixelSource& source, float* out,
                                 TransformScratch& scratch) const {
  ImageShape shape = source.shape(), last = shape;
  for (size_t i = 0; i < end; ++i) last = transforms_[i]->output(last);
  size_t next = 0;
  bool are_bytes = source.has_bytes();
  // The window that `next` begins, with the crops that follow it.
  const auto take_window = [&]() -> std::optional<Window> {
    if (next == end) return {};
    auto window = transforms_[next]->window(draws(key, next), shape);
    for (; window; ++next) {
      shape = {window->part.height, window->part.width, shape.channels};
      if (next + 1 == end) break;
      const auto inner = transforms_[next + 1]->window(draws(key, next + 1), shape);
      if (!inner || !inner->is_crop()) break;
      window = window->keep(
          {static_cast<int64_t>(inner->y), static_cast<int64_t>(inner->x), inner->height, inner->width});
    }
    next += window.has_value();
    return window;
  };
  const auto compute_window = [&](PixelSource& from, const Window& window, float* to) {
    resample(from, window, to, scratch.resampling);
    if (are_bytes && !window.is_crop()) round_to_bytes(shape.count(), to);
  };
  // Steps of the final shape that keep it work where the result belongs.
  const auto place_for = [&](std::vector<float>& room) {
    if (shape == last) return out;
    room.resize(static_cast<size_t>(shape.count()));
    return room.data();
  };
  float* pixels = nullptr;
  if (const auto window = take_window()) {
    pixels = place_for(scratch.image);
    compute_window(source, *window, pixels);
  } else {
    pixels = place_for(scratch.image);
    read_whole(source, pixels);
  }
  while (next < end) {
    const ImageShape before = shape;
    if (const auto window = take_window()) {
      MemoryPixels from(before, pixels, scratch.step);
      auto& room = pixels == scratch.image.data() ? scratch.other : scratch.image;
      // The result must not lie where its source does.
      float* to = shape == last && pixels != out
                      ? out
                      : (room.resize(static_cast<size_t>(shape.count())), room.data());
      compute_window(from, *window, to);
      pixels = to;
    } else {
      transforms_[next]->apply(draws(key, next), shape, pixels, scratch.step);
      are_bytes = false;
      ++next;
    }
  }
  if (pixels != out) std::copy_n(pixels, last.count(), out);
}

TransformScratch& scratch_of_thread() {
  thread_local TransformScratch scratch;
  return scratch;
}

}  // namespace lockstep::data
