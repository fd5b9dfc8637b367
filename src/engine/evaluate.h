// How well a model predicts a text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "src/engine/loaded_model.h"

namespace m3::engine {

struct Evaluation {
  std::int64_t tokens = 0;  // predicted
  double nll = 0;           // sum of -ln p, nats
};

// Windows of `window` tokens; each begins `stride` after the last and predicts only what the one before has not, so
// that every token but the first is predicted once, with at least window - stride tokens of context after the first
// window. `progress` gets the tokens predicted so far. Needs max_logits_rows >= max_batched_tokens.
Evaluation evaluate(LoadedModel& model, std::span<const std::int32_t> ids, std::int64_t window, std::int64_t stride,
                    const std::function<void(std::int64_t)>& progress);

}  // namespace m3::engine
