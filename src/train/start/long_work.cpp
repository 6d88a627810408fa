#include "train/start/long_work.h"

#include <string>

#include "comm/gather_texts.h"

namespace lockstep::train {
namespace {

const std::string kGetsOn = "gets on";

}  // namespace

void LongWork::gets_on() {
  if (world_.size() == 1 || Clock::now() - last_word_ < options_.between_words) return;
  comm::gather_texts(world_, kGetsOn, options_.patience);
  last_word_ = Clock::now();
}

void LongWork::done() {
  if (world_.size() == 1) return;
  while (comm::gather_texts(world_, "", options_.patience)[0] == kGetsOn)
    ;
}

}  // namespace lockstep::train
