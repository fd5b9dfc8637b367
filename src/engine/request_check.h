// What a request may ask for.
#pragma once

#include "m3/engine.h"

namespace m3::engine {

// `request.prompt_ids` is filled. Errors (usage): what m3::Engine::submit refuses; the line names the parameter.
void check_request(const Request& request, const ModelInfo& info);

}  // namespace m3::engine
