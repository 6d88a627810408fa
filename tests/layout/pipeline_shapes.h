#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "layout/pipeline_schedule.h"

namespace lockstep::layout {

/// Calls `check` with shapes of all schedules, of up to 8 stages, 32 micro-batches and 4 chunks.
inline void for_each_shape(const std::function<void(const PipelineShape&)>& check) {
  for (const PipelineSchedule schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b,
                                          PipelineSchedule::interleaved, PipelineSchedule::zero_bubble})
    for (int stages = 1; stages <= 8; ++stages)
      for (int micro_batches = 1; micro_batches <= 32; ++micro_batches)
        for (int chunks = 1; chunks <= (schedule == PipelineSchedule::interleaved ? 4 : 1); ++chunks)
          for (const bool recomputes : {false, true}) {
            const PipelineShape shape{schedule, stages, micro_batches, chunks, recomputes};
            if (!takes(shape)) continue;
            SCOPED_TRACE(testing::Message() << "schedule " << static_cast<int>(schedule) << ", " << stages
                                            << " stages, " << micro_batches << " micro-batches, " << chunks
                                            << " chunks" << (recomputes ? ", recomputing" : ""));
            check(shape);
            if (testing::Test::HasFatalFailure()) return;
          }
}

}  // namespace lockstep::layout
