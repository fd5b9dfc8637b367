// Placeholders of a rendered prompt become the tokens of their pictures.
#pragma once

#include <span>
#include <vector>

#include "m3/engine.h"
#include "src/media/loader.h"
#include "src/tokenizer/tokenizer.h"

namespace m3::media {

// The ids that the template's placeholders and a picture's start and end have. Errors (input): the tokenizer lacks one,
// or has another id for a placeholder than the model's config.
struct PlaceholderIds {
  TokenId image = -1, video = -1, start = -1, end = -1;
};
PlaceholderIds placeholder_ids(const Tokenizer& tokenizer, const MediaInfo& model);

// The prompt's ids with each placeholder replaced by its picture's tokens, and a clip's times. Errors (input): the
// template wrote other placeholders than `prepared` has pictures.
std::vector<TokenId> expand_prompt(const Tokenizer& tokenizer, const MediaInfo& model, std::span<const TokenId> ids,
                                   std::span<const Prepared> prepared);

// For the request: what the engine computes features of.
std::vector<Media> media_of(std::span<const Prepared> prepared);

}  // namespace m3::media
