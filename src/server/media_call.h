// Requests with pictures: what they name is fetched and decoded on the loader's threads, and the request goes on when it
// is there. No thread of the server waits for it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "src/media/prompt.h"
#include "src/server/chat_call.h"
#include "src/server/field_names.h"

namespace m3::server {

// What read_chat() read, and where its pictures are. Errors (m3::Error, ApiError): more pictures than are allowed, a
// picture without data, sizes that are wrong, a model that takes none; all before anything is fetched.
std::vector<media::Reference> read_pictures(const Server& server, const chat::ChatRequest& request,
                                            const chat::Value& body);

// Calls `go_on` with the pictures: at once where there are none, else on a worker. What it throws, and what is wrong with
// a picture, becomes the reply, under the client's own `names` of fields. Where the client goes or the request is
// cancelled meanwhile, what is left of the work is dropped. Errors where there are no pictures: what `go_on` throws.
using WithPictures = std::function<void(const std::vector<media::Prepared>& pictures)>;
void with_pictures(Server& server, const std::shared_ptr<Exchange>& exchange, std::vector<media::Reference> references,
                   const FieldNames& names, WithPictures go_on);

// Into the call's request, in place of the prompt's placeholders. Errors (ApiError 400): the prompt is too long then.
void add_pictures(const Model& model, const std::vector<media::Prepared>& pictures, ChatCall& call);

}  // namespace m3::server
