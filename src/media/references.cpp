#include "src/media/references.h"

#include <filesystem>

#include "src/base/error.h"
#include "src/chat/request_fields.h"
#include "src/media/members.h"

namespace m3::media {
namespace {

using chat::Kind;
using chat::Value;

const char* kind_name(Media::Kind kind) { return kind == Media::Kind::image ? "picture" : "video"; }

// {"type": "base64", "media_type", "data"} or {"type": "url", "url"}.
std::string source_url(const Value& source, const std::string& path) {
  if (!source.is(Kind::dict)) fail("{}: expected an object, found {}", path, chat::json_type(source));
  const auto text = [&](const char* name) {
    const Value* value = member(source, name);
    if (value == nullptr || !value->is(Kind::string)) fail("{}.{}: expected a string", path, name);
    return value->bytes();
  };
  const std::string type = text("type");
  if (type == "url") return text("url");
  if (type != "base64") fail("{}.type: expected base64 or url", path);
  return "data:;base64," + text("data");
}

struct Found {
  std::string url;
  Sizing sizing;
};

Found find_url(const chat::MediaPart& given) {
  const char* kind = given.video ? "video" : "image";
  const std::string url_name = std::string(kind) + "_url";
  Found found;
  found.sizing = read_sizing(given.part, given.path + ".", true);
  for (const std::string& name : {url_name, std::string(kind), std::string("url")}) {
    const Value* value = member(given.part, name);
    if (value == nullptr) continue;
    const std::string path = given.path + "." + name;
    if (value->is(Kind::string)) {
      found.url = value->bytes();
    } else if (value->is(Kind::dict)) {
      const Value* url = member(*value, "url");
      if (url == nullptr) continue;
      if (!url->is(Kind::string)) fail("{}.url: expected a string, found {}", path, chat::json_type(*url));
      found.url = url->bytes();
      found.sizing = merged(found.sizing, read_sizing(*value, path + ".", true));
    } else {
      fail("{}: expected a URL or an object with one, found {}", path, chat::json_type(*value));
    }
    break;
  }
  if (const Value* source = member(given.part, "source"); found.url.empty() && source != nullptr) {
    found.url = source_url(*source, given.path + ".source");
  }
  if (found.url.empty())
    fail("{}: a {} without data; give {}", given.path, given.video ? "video" : "picture", url_name);
  return found;
}

void check_count(const std::vector<chat::MediaPart>& parts, bool video, std::int64_t most) {
  std::int64_t count = 0;
  for (const chat::MediaPart& part : parts) {
    if (part.video != video || ++count <= most) continue;
    if (most == 0) fail("{}: {}s are not taken here", part.path, video ? "video" : "picture");
    fail("{}: more than the {} {}s that one prompt may have", part.path, most, video ? "video" : "picture");
  }
}

}  // namespace

std::vector<Reference> read_references(const chat::ChatRequest& request, const Value& body,
                                       const MediaOptions& options) {
  // Checked where there is no picture too: what a request says is right or wrong, whatever else is in it.
  const RequestSizing sizing = read_request_sizing(body);
  Reference checked;
  apply(sizing.images, checked.image = options.image);
  apply(sizing.videos, checked.video = options.video);
  check_count(request.media, false, options.most_images);
  check_count(request.media, true, options.most_videos);
  std::vector<Reference> references;
  for (const chat::MediaPart& part : request.media) {
    Found found = find_url(part);
    Reference reference = {.kind = part.video ? Media::Kind::video : Media::Kind::image,
                           .url = std::move(found.url),
                           .path = part.path,
                           .image = options.image,
                           .video = options.video};
    if (part.video) {
      apply(merged(sizing.videos, found.sizing), reference.video);
    } else {
      apply(merged(sizing.images, found.sizing), reference.image);
    }
    references.push_back(std::move(reference));
  }
  return references;
}

std::string file_url(const std::string& name) {
  if (name.find("://") != std::string::npos || name.starts_with("data:")) {
    fail("{}: a file is expected; a request (m3 run --request, m3 serve) may name addresses", name.substr(0, 80));
  }
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(name, error);
  if (error) fail("{}: {}", name, error.message());
  if (!std::filesystem::is_regular_file(path, error)) fail("{}: not a regular file", name);
  std::string url = "file://";
  for (const char c : path.string()) {
    if (c == '%' || static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7f) {
      url += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    } else {
      url += c;
    }
  }
  return url;
}

std::vector<Reference> file_references(const std::vector<std::string>& images, const std::vector<std::string>& videos,
                                       const MediaOptions& options) {
  std::vector<Reference> references;
  const auto add = [&](const std::vector<std::string>& files, Media::Kind kind) {
    for (const std::string& file : files)
      references.push_back({kind, file_url(file), file, options.image, options.video});
  };
  add(images, Media::Kind::image);
  add(videos, Media::Kind::video);
  return references;
}

void check_model_takes(const std::vector<Reference>& references, const MediaInfo& model) {
  for (const Reference& reference : references) {
    if (!model.unavailable.empty()) fail("{}: {}", reference.path, model.unavailable);
    const TokenId id = reference.kind == Media::Kind::image ? model.image_id : model.video_id;
    if (id < 0) fail("{}: this model takes no {}s", reference.path, kind_name(reference.kind));
  }
}

}  // namespace m3::media
