// What a picture or video takes in a prompt: one placeholder of the chat template becomes as many tokens as it has
// features (specification, section 4.8).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/base/function_ref.h"
#include "src/vision/patches.h"

namespace m3::vision {

// The published ids.
struct MediaTokens {
  std::int32_t image = 200'025, video = 200'026;  // "]<]image[>[", "]<]video[>["
  std::int32_t start = 200'029, end = 200'030;    // around an image, and around each temporal group of a video
  int merge = 2;                                  // patches of a side of one token
};

// The tokens that stand in place of one placeholder. An image: start, a token for each feature, end. A video, for each
// temporal group: the time as text where it is known, start, a token for each of the group's features, end. `encode`
// gives the ids of a text by itself, so that what stands before it cannot merge with it.
std::vector<std::int32_t> media_tokens(const Pixels& pixels, const MediaTokens& ids,
                                       FunctionRef<std::vector<std::int32_t>(const std::string&)> encode);

// The prompt with its placeholders, each a single id, replaced in order by `media`. Errors (input): another number of
// them, or another kind in one's place.
std::vector<std::int32_t> expand_placeholders(std::span<const std::int32_t> prompt,
                                              std::span<const Pixels* const> media, const MediaTokens& ids,
                                              FunctionRef<std::vector<std::int32_t>(const std::string&)> encode);

}  // namespace m3::vision
