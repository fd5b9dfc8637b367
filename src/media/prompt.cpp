#include "src/media/prompt.h"

#include "src/base/error.h"
#include "src/vision/placeholders.h"

namespace m3::media {
namespace {

constexpr const char* image_text = "]<]image[>[";
constexpr const char* video_text = "]<]video[>[";
constexpr const char* start_text = "]<]start of image[>[";
constexpr const char* end_text = "]<]end of image[>[";

}  // namespace

PlaceholderIds placeholder_ids(const Tokenizer& tokenizer, const MediaInfo& model) {
  const auto id_of = [&](const char* text) {
    const TokenId id = tokenizer.id_of(text);
    if (id < 0) fail("this model's tokenizer has no token {}, which pictures need", text);
    return id;
  };
  const auto placeholder = [&](const char* text, TokenId config) {
    if (config < 0) return config;
    const TokenId id = id_of(text);
    if (id != config) fail("the token {} has id {}, but config.json says {} for placeholders", text, id, config);
    return id;
  };
  return {placeholder(image_text, model.image_id), placeholder(video_text, model.video_id), id_of(start_text),
          id_of(end_text)};
}

std::vector<TokenId> expand_prompt(const Tokenizer& tokenizer, const MediaInfo& model, std::span<const TokenId> ids,
                                   std::span<const Prepared> prepared) {
  if (prepared.empty()) return {ids.begin(), ids.end()};
  const PlaceholderIds known = placeholder_ids(tokenizer, model);
  // What the prompt needs of them is their grids and times alone.
  std::vector<vision::Pixels> shapes;
  for (const Prepared& one : prepared) {
    vision::Pixels shape;
    shape.grid = {one.media.t, one.media.h, one.media.w};
    shape.video = one.media.kind == Media::Kind::video;
    shape.timestamps = one.timestamps;
    shapes.push_back(std::move(shape));
  }
  std::vector<const vision::Pixels*> pointers;
  for (const vision::Pixels& shape : shapes) pointers.push_back(&shape);
  const vision::MediaTokens tokens = {
      .image = known.image, .video = known.video, .start = known.start, .end = known.end, .merge = model.merge_size};
  return vision::expand_placeholders(ids, pointers, tokens,
                                     [&](const std::string& text) { return tokenizer.encode(text); });
}

std::vector<Media> media_of(std::span<const Prepared> prepared) {
  std::vector<Media> media;
  for (const Prepared& one : prepared) media.push_back(one.media);
  return media;
}

}  // namespace m3::media
