// Timed forward passes over random cache contents, each beside the limit that it is held against.
#pragma once

#include <cstdint>

#include "src/engine/loaded_model.h"

namespace m3::engine {

// What one forward pass must do at least.
struct Work {
  double weight_bytes = 0;  // stored bytes, each weight once; of experts those that tokens chose
  double cache_bytes = 0;   // K, V and index-K read, each once a sequence
  double operations = 0;    // multiplications and additions of products, useful ones only
};

struct Timing {
  double seconds = 0;  // of one pass: the median; of decode on a device the mean
  Work work;
};

class Profile;

// One token for each of `batch` sequences that have `context` tokens already. `repeats` passes are timed.
// `profile`, if the model was given one, holds these passes afterwards.
Timing time_decode(LoadedModel& model, std::int64_t batch, std::int64_t context, int repeats,
                   Profile* profile = nullptr);

// `tokens` new tokens of one sequence on top of `context` cached ones, in passes of the model's batch maximum, with
// the last token's logits.
Timing time_prefill(LoadedModel& model, std::int64_t tokens, std::int64_t context, int repeats,
                    Profile* profile = nullptr);

// Writes random K, V and index-K of unit variance into pages, straight. Deterministic in `seed`.
void fill_pages(LoadedModel& model, std::span<const std::int32_t> pages, std::uint64_t seed);

}  // namespace m3::engine
