// The engine's own cost: its rate beside the bare model's at the same batch.
#pragma once

#include <cstdint>

#include "src/engine/local_engine.h"

namespace m3::engine {

struct EngineTiming {
  double tokens_per_second = 0;    // while all run: from the step after the last began to the end of the first
  double scheduler_share = 0;      // of the time of these steps, outside the model's and the sampler's operations
  double first_token_seconds = 0;  // until the last of them had its first token
};

// `concurrent` requests of `prompt` random tokens each, submitted at once, greedy, each with a reply of `reply` tokens.
// The engine's context, places and pages suffice for all at the same time. Errors: a request fails.
EngineTiming time_engine(Engine& engine, std::int64_t concurrent, std::int64_t prompt, std::int64_t reply);

}  // namespace m3::engine
