// Bodies of /v1/messages and /v1/responses: whatever they hold, they are translated or refused.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "src/chat/template/json.h"
#include "src/server/anthropic_request.h"
#include "src/server/responses_request.h"
#include "src/server/responses_store.h"

using namespace m3;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string problem;
  const auto body = chat::try_parse_json(std::string_view(reinterpret_cast<const char*>(data), size), problem);
  if (!body || !body->is(chat::Kind::dict)) return 0;
  try {
    server::read_anthropic_request(*body, {.needs_max_tokens = false, .allow_unknown_fields = true});
  } catch (const server::ApiError&) {}
  try {
    const server::ResponseStore store;
    server::read_responses_request(*body, store, true);
  } catch (const server::ApiError&) {}
  return 0;
}
