// The pictures and videos that a conversation names: where each one's bytes are, and how large it becomes.
#pragma once

#include <string>
#include <vector>

#include "m3/engine.h"
#include "src/chat/messages.h"
#include "src/media/options.h"

namespace m3::media {

struct Reference {
  Media::Kind kind = Media::Kind::image;
  std::string url;   // data:, file:, http: or https:
  std::string path;  // for errors: "messages[0].content[1]"
  vision::ImageOptions image;
  vision::VideoOptions video;
};

// Of a checked request, in the order of its prompt's placeholders. `body`: what the request was read from, for what it
// says of sizes. A part holds its URL as `image_url`, `image` or `url`: a string, or an object with `url` (likewise for
// videos), or Anthropic's `source`. Sizes may stand beside it or inside that object. Errors, which begin with the path
// of the field: more than `options` allow, a part without a URL, sizes that are wrong.
std::vector<Reference> read_references(const chat::ChatRequest& request, const chat::Value& body,
                                       const MediaOptions& options);

// Files on the command line: images, then videos.
std::vector<Reference> file_references(const std::vector<std::string>& images, const std::vector<std::string>& videos,
                                       const MediaOptions& options);

// A file's name as a file: URL. Errors: there is no such file.
std::string file_url(const std::string& name);

// Errors (input), one line that begins with the path of the first that cannot come: the model takes none of its kind.
void check_model_takes(const std::vector<Reference>& references, const MediaInfo& model);

}  // namespace m3::media
