#pragma once

#include <array>
#include <cstring>
#include <vector>

#include "data/dataset.h"
#include "device/device.h"
#include "pixels/expand.h"

namespace lockstep::test {

/// Samples with one image, a label, and perhaps a mixture.
struct ImageSample {
  std::vector<float> image;
  int32_t label = -7;
  std::array<int32_t, 2> mixture{-7, -7};
};

/// Reads samples of a data set as they are and packed. Makes images of packed ones on the GPU that the
/// program is linked to.
class PackedImageReader {
 public:
  template <class T>
  std::vector<T> expand(const pixels::PackedLayout& layout, const std::vector<std::byte>& packed,
                        DType type) {
    const int64_t count = std::ssize(packed) / layout.sample_bytes();
    std::vector<T> values(static_cast<size_t>(count * layout.image.count()));
    const auto size_bytes = static_cast<int64_t>(values.size() * sizeof(T));
    const device::Buffer samples = device_->allocate(std::ssize(packed)),
                         images = device_->allocate(size_bytes);
    device_->copy_now(samples.data(), packed.data(), std::ssize(packed));
    pixels::expand_on_gpu(
        {.layout = layout, .samples = samples.data(), .count = count, .images = images.data(), .dtype = type},
        *stream_);
    stream_->synchronize();
    device_->copy_now(values.data(), images.data(), size_bytes);
    return values;
  }

  ImageSample read(const data::Dataset& data, const data::SampleKey& key) {
    ImageSample sample;
    sample.image.resize(static_cast<size_t>(data.fields()[0].spec.shape.count()));
    auto to = destinations(sample);
    data.read(key, std::span(to.data(), data.fields().size()));
    return sample;
  }
  ImageSample read_packed(const data::Dataset& data, const data::SampleKey& key) {
    ImageSample sample;
    const pixels::PackedLayout layout = data.packed()->layout;
    std::vector<std::byte> packed(static_cast<size_t>(layout.sample_bytes()), std::byte{0xa5});
    auto to = destinations(sample);
    data.read_packed(key, std::span(to.data(), data.fields().size()), layout.parts(packed.data()));
    sample.image = expand<float>(layout, packed, DType::float32);
    return sample;
  }

 private:
  static std::array<std::byte*, 3> destinations(ImageSample& sample) {
    return {reinterpret_cast<std::byte*>(sample.image.data()), reinterpret_cast<std::byte*>(&sample.label),
            reinterpret_cast<std::byte*>(sample.mixture.data())};
  }

  std::unique_ptr<device::Device> device_ = device::make_cuda_device(0);
  std::unique_ptr<device::Stream> stream_ = device_->create_stream("copy");
};

}  // namespace lockstep::test
