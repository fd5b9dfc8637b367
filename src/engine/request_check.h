// What a request may ask for.
#pragma once

#include "m3/engine.h"

namespace m3::engine {

// `request.prompt_ids` is filled; `position_limit` is where the checkpoint's positions end, in tokens. Errors (usage):
// what m3::Engine::submit refuses; the line names the parameter.
void check_request(const Request& request, const ModelInfo& info, std::int64_t position_limit);

}  // namespace m3::engine
