#include "ops/cuda/columns.h"

#include <fmt/format.h>

#include "bench.h"
#include "ops/cuda/column_sum.h"

namespace lockstep::ops {
namespace {

struct Shapes {
  std::string_view name;
  Windows windows;
  int64_t images;  // so that they and their columns have 64 MiB together at the least
};

}  // namespace

void measure_columns(Bench& bench, DType compute) {
  const Shapes lenet1{"LeNet 28x28x1 5x5", {28, 28, 1, 5, 1, 2, 28, 28}, 8192};
  const Shapes lenet2{"LeNet 14x14x6 5x5", {14, 14, 6, 5, 1, 0, 10, 10}, 8192};
  const Shapes resnet{"56x56x64 3x3", {56, 56, 64, 3, 1, 1, 56, 56}, 128};
  for (const auto& [name, windows, images] : {lenet1, lenet2, resnet}) {
    const int64_t count = bench.tiny() ? 1 : images;
    const Shape image_shape({count, windows.height, windows.width, windows.channels});
    const Shape column_shape({count * windows.per_image(), windows.row_length()});
    const Tensor image = bench.make({image_shape, compute}), columns = bench.make({column_shape, compute});
    const Tensor gradients = bench.make({column_shape});
    bench.measure_copy();
    bench.report(fmt::format("im2col, {}", name), name_of(compute), "forward",
                 image.size_bytes() + columns.size_bytes(), [&] {
                   images_to_columns(windows, compute, image.data, count, columns.data, bench.stream());
                 });
    bench.report(fmt::format("col2im, {}", name), name_of(compute), "backward",
                 image.size_bytes() + gradients.size_bytes(), [&] {
                   columns_to_images(windows, gradients.as<float>(), count, compute, image.data,
                                     bench.stream());
                 });
    bench.release();
  }
  for (const int64_t columns : {768, 3072}) {
    const int64_t rows = bench.tiny() ? 64 : (int64_t{1} << 28) / (columns * size_of(compute));  // 256 MiB
    const ColumnSum sum(rows, columns, compute);
    const Tensor x = bench.make({Shape({rows, columns}), compute}), sums = bench.make({Shape({columns})});
    void* const workspace = bench.make_bytes(sum.workspace_bytes());
    bench.measure_copy();
    bench.report(fmt::format("column sums, {}", columns), name_of(compute), "backward", x.size_bytes(),
                 [&] { sum.run(x.data, sums.as<float>(), false, workspace, bench.stream()); });
    bench.release();
  }
}

}  // namespace lockstep::ops
