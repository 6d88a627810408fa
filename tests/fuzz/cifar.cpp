#include "data/cifar.h"

#include <array>

#include "fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  std::string record(3073, '\1');
  return {record, record + record + record, std::string(1, '\2') + record};
}

void parse(std::string_view bytes) {
  const bool is_hundred = bytes.size() % 3074 == 0;
  data::DataOptions options{.kind = data::DataKind::cifar};
  options.cifar.labels = is_hundred ? data::CifarLabels::cifar100 : data::CifarLabels::cifar10;
  options.cifar.train_files = {file_of(bytes)};
  options.cifar.eval_files = options.cifar.train_files;
  const auto pair = data::open_cifar_datasets(options);
  std::vector<float> image(3072);
  int32_t label = 0;
  const std::array<std::byte*, 2> to{reinterpret_cast<std::byte*>(image.data()),
                                     reinterpret_cast<std::byte*>(&label)};
  for (int64_t i = 0; i < pair.train->size(); ++i) pair.train->read(i, to);
}

}  // namespace lockstep::fuzz
