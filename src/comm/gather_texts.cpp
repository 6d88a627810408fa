#include "comm/gather_texts.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "device/device.h"

namespace lockstep::comm {

std::vector<std::string> gather_texts(Communicator& world, const std::string& own,
                                      std::chrono::milliseconds timeout) {
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream("texts");
  const auto ranks = static_cast<size_t>(world.size()), rank = static_cast<size_t>(world.rank());
  std::vector<int64_t> sizes(ranks);
  sizes[rank] = static_cast<int64_t>(own.size());
  world.all_gather(sizes.data(), sizeof(int64_t), *stream);
  world.synchronize(*stream, deadline_in(timeout));
  const auto block = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::string blocks(ranks * block, '\0');
  std::copy(own.begin(), own.end(), blocks.begin() + static_cast<std::ptrdiff_t>(rank * block));
  world.all_gather(blocks.data(), static_cast<int64_t>(block), *stream);
  world.synchronize(*stream, deadline_in(timeout));
  std::vector<std::string> texts;
  for (size_t r = 0; r < ranks; ++r) texts.push_back(blocks.substr(r * block, static_cast<size_t>(sizes[r])));
  return texts;
}

void collect_texts(Communicator& world, std::string own, std::chrono::milliseconds timeout,
                   const std::function<void(std::string text)>& take) {
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream("texts");
  std::vector<int64_t> sizes(static_cast<size_t>(world.size()));
  sizes[static_cast<size_t>(world.rank())] = static_cast<int64_t>(own.size());
  world.all_gather(sizes.data(), sizeof(int64_t), *stream);
  world.synchronize(*stream, deadline_in(timeout));
  const auto pass = [&](Transfer::Direction direction, int peer, std::string& text) {
    const Transfer transfer{direction, peer, text.data(), static_cast<int64_t>(text.size())};
    world.exchange({&transfer, 1}, *stream);
    world.synchronize(*stream, deadline_in(timeout));
  };
  if (world.rank() != 0) {
    pass(Transfer::Direction::send, 0, own);
    return;
  }
  take(std::move(own));
  for (int rank = 1; rank < world.size(); ++rank) {
    std::string text(static_cast<size_t>(sizes[static_cast<size_t>(rank)]), '\0');
    pass(Transfer::Direction::receive, rank, text);
    take(std::move(text));
  }
}

}  // namespace lockstep::comm
