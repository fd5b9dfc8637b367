// The paths of APIs that live in files of their own.
#pragma once

#include "src/server/router.h"

namespace m3::server {

class Server;

void add_responses_routes(Router& router, Server& server);  // responses.cpp: /v1/responses, with its store
void add_anthropic_routes(Router& router, Server& server);  // anthropic_messages.cpp: /v1/messages
void add_page_routes(Router& router, Server& server);       // page.cpp: / and /page

}  // namespace m3::server
