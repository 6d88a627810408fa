#include "ops/upsample2d.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "ops/cpu/parallel.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

/// A side of the image by places: where each of the output reads, and who reads each of the input.
struct Side {
  struct Reader {
    int place;
    float weight;
  };
  std::vector<AxisSource> sources;
  std::vector<Reader> readers;     // of all places of the input, one after another
  std::vector<int> first_readers;  // where those of a place begin; one more

  explicit Side(const UpsampleAxis& axis) {
    for (int place = 0; place < axis.out; ++place) sources.push_back(axis.source(place));
    for (int from = 0; from < axis.in; ++from) {
      first_readers.push_back(static_cast<int>(readers.size()));
      for (int place = axis.first_reader(from); place < axis.end_of_readers(from); ++place)
        readers.push_back({place, axis.weight(place, from)});
    }
    first_readers.push_back(static_cast<int>(readers.size()));
  }
  std::span<const Reader> readers_of(int64_t from) const {
    const auto begin = static_cast<size_t>(first_readers[static_cast<size_t>(from)]),
               end = static_cast<size_t>(first_readers[static_cast<size_t>(from) + 1]);
    return std::span(readers).subspan(begin, end - begin);
  }
};

void mix(float* __restrict to, const float* __restrict low, const float* __restrict high, float share,
         int64_t count) {
  const float rest = 1.0f - share;
  for (int64_t i = 0; i < count; ++i) to[i] = rest * low[i] + share * high[i];
}

/// to = the weighted sum of rows of `count` numbers, the readers' in their order; 0 without readers.
void gather(float* __restrict to, const float* rows, int64_t count, std::span<const Side::Reader> readers) {
  if (readers.empty()) {
    std::fill(to, to + count, 0.0f);
    return;
  }
  const float* __restrict first = rows + readers[0].place * count;
  for (int64_t i = 0; i < count; ++i) to[i] = readers[0].weight * first[i];
  for (const auto& reader : readers.subspan(1)) {
    const float* __restrict row = rows + reader.place * count;
    for (int64_t i = 0; i < count; ++i) to[i] += reader.weight * row[i];
  }
}

class Upsample2dKernel : public Kernel {
 public:
  Upsample2dKernel(const Upsample2d& op, const Shape& image, const KernelOptions& options)
      : kind_(op.kind),
        geometry_(op, image),
        rows_(geometry_.rows),
        columns_(geometry_.columns),
        batch_(options.batch),
        shares_(std::min<int64_t>(options.intra_op_threads, options.batch)) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    const bool needs_row = phase == KernelPhase::backward_input ||
                           (phase == KernelPhase::forward && kind_ == UpsampleKind::bilinear);
    return needs_row ? shares_ * row_floats(phase) * int64_t{sizeof(float)} : 0;
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([this, x = arguments.inputs[0].as<const float>(), y = arguments.outputs[0].as<float>(),
                   workspace = static_cast<float*>(arguments.workspace)] {
      for_samples([=, this](int64_t share, int64_t sample) {
        const float* from = x + sample * geometry_.input_size();
        float* to = y + sample * geometry_.output_size();
        if (kind_ == UpsampleKind::nearest)
          nearest(from, to);
        else
          bilinear(from, to, workspace + share * row_floats(KernelPhase::forward));
      });
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([this, dy = arguments.output_gradients[0].as<const float>(),
                   dx = arguments.input_gradients[0].as<float>(),
                   workspace = static_cast<float*>(arguments.workspace)] {
      for_samples([=, this](int64_t share, int64_t sample) {
        float* const row = workspace + share * row_floats(KernelPhase::backward_input);
        const float* from = dy + sample * geometry_.output_size();
        float* to = dx + sample * geometry_.input_size();
        const int64_t channels = geometry_.channels;
        for (int64_t place = 0; place < geometry_.rows.in; ++place) {
          gather(row, from, geometry_.columns.out * channels, rows_.readers_of(place));
          for (int64_t column = 0; column < geometry_.columns.in; ++column, to += channels)
            gather(to, row, channels, columns_.readers_of(column));
        }
      });
    });
  }

 private:
  /// Of the image that a row between both is made of: all rows first, since those are contiguous.
  int64_t row_floats(KernelPhase phase) const {
    return (phase == KernelPhase::forward ? geometry_.columns.in : geometry_.columns.out) *
           geometry_.channels;
  }

  /// Calls work(share, sample) for all samples; a share's are on one thread.
  template <class Work>
  void for_samples(const Work& work) const {
    parallel_for(static_cast<int>(shares_), shares_, [&](int64_t share) {
      for (int64_t sample = batch_ * share / shares_; sample < batch_ * (share + 1) / shares_; ++sample)
        work(share, sample);
    });
  }

  void nearest(const float* x, float* y) const {
    const int64_t channels = geometry_.channels, row_size = geometry_.columns.out * channels;
    int before = -1;  // the row of the input that the row before is made of
    for (const AxisSource& row : rows_.sources) {
      if (row.low == before) {
        std::memcpy(y, y - row_size, static_cast<size_t>(row_size) * sizeof(float));
        y += row_size;
        continue;
      }
      before = row.low;
      const float* from = x + row.low * geometry_.columns.in * channels;
      for (const AxisSource& column : columns_.sources) {
        const float* pixel = from + column.low * channels;
        for (int64_t c = 0; c < channels; ++c) y[c] = pixel[c];
        y += channels;
      }
    }
  }

  void bilinear(const float* x, float* y, float* mixed) const {
    const int64_t channels = geometry_.channels, row_size = geometry_.columns.in * channels;
    for (const AxisSource& row : rows_.sources) {
      mix(mixed, x + row.low * row_size, x + row.high * row_size, row.share, row_size);
      for (const AxisSource& column : columns_.sources) {
        mix(y, mixed + column.low * channels, mixed + column.high * channels, column.share, channels);
        y += channels;
      }
    }
  }

  UpsampleKind kind_;
  UpsampleGeometry geometry_;
  Side rows_, columns_;
  int64_t batch_, shares_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Upsample2d& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<Upsample2dKernel>(op, inputs[0].shape, options);
}

}  // namespace lockstep::ops
