#include "src/vision/placeholders.h"

#include <algorithm>

#include "src/base/error.h"

namespace m3::vision {

std::vector<std::int32_t> media_tokens(const Pixels& pixels, const MediaTokens& ids,
                                       FunctionRef<std::vector<std::int32_t>(const std::string&)> encode) {
  const std::int64_t groups = pixels.video ? pixels.grid.t : 1;
  const auto tokens = static_cast<std::size_t>(pixels.tokens(ids.merge) / groups);
  std::vector<std::int32_t> result;
  for (std::int64_t group = 0; group < groups; ++group) {
    if (pixels.video && !pixels.timestamps.empty()) {
      const auto text = encode(timestamp_text(pixels.timestamps.at(static_cast<std::size_t>(group))));
      result.insert(result.end(), text.begin(), text.end());
    }
    result.push_back(ids.start);
    result.insert(result.end(), tokens, pixels.video ? ids.video : ids.image);
    result.push_back(ids.end);
  }
  return result;
}

std::vector<std::int32_t> expand_placeholders(std::span<const std::int32_t> prompt,
                                              std::span<const Pixels* const> media, const MediaTokens& ids,
                                              FunctionRef<std::vector<std::int32_t>(const std::string&)> encode) {
  const auto is_placeholder = [&](std::int32_t id) { return id == ids.image || id == ids.video; };
  const auto count = static_cast<std::size_t>(std::ranges::count_if(prompt, is_placeholder));
  if (count != media.size()) {
    fail("the prompt has {} placeholders for pictures and videos, and {} came with it", count, media.size());
  }
  std::vector<std::int32_t> result;
  std::size_t next = 0;
  for (const std::int32_t id : prompt) {
    if (!is_placeholder(id)) {
      result.push_back(id);
      continue;
    }
    const Pixels& pixels = *media[next++];
    if (pixels.video != (id == ids.video)) {
      fail("placeholder {} of the prompt is for a {}, and a {} came for it", next,
           id == ids.video ? "video" : "picture", pixels.video ? "video" : "picture");
    }
    const auto tokens = media_tokens(pixels, ids, encode);
    result.insert(result.end(), tokens.begin(), tokens.end());
  }
  return result;
}

}  // namespace m3::vision
