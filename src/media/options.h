// What becomes of a request's pictures and videos before the model sees them: what may come, how much of it, how large
// it becomes. A program has one set of defaults; a request and each part of a message may change some of it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "src/chat/template/value.h"
#include "src/vision/preprocess.h"
#include "src/vision/source.h"

namespace m3::media {

struct MediaOptions {
  vision::SourceOptions sources = {};
  vision::ImageOptions image = {};
  vision::VideoOptions video = {};
  // Of one prompt.
  std::int64_t most_images = 200;
  std::int64_t most_videos = 20;
  int threads = 0;             // that decode; 0: one a core. One more is kept for small pictures
  double decode_seconds = 60;  // for a picture or video, waiting for memory left out
  int fetches = 64;            // from the web, at the same time
  int fetches_per_host = 8;
  std::int64_t memory_bytes = 0;  // of files and prepared values that requests hold; 0: a quarter of what is available
  std::int64_t cache_bytes = std::int64_t{256} << 20;  // of these, kept for the next request with the same picture
  std::int64_t decode_memory_bytes = 0;                // of what is being decoded; 0: an eighth of what is available
  std::int64_t most_waiting = 1024;                    // requests that wait for their pictures
};

// With numbers in place of zeros, by a machine of so many cores (0: not known) and the memory available now.
MediaOptions with_machine_defaults(MediaOptions options, unsigned cores = std::thread::hardware_concurrency());

// What a request or a part says of it; nothing: as before.
struct Sizing {
  std::optional<vision::SizeRule> rule;
  std::optional<std::int64_t> min_pixels, max_pixels;
  std::optional<int> max_long_side;
  std::optional<double> fps;
  std::optional<int> min_frames, max_frames;
  std::optional<std::int64_t> total_pixels;
  std::string detail;  // "low", "high", "default", or empty
  // By its name above, as in requests: where it was said, for errors ("mm_processor_kwargs.max_long_side_pixel").
  std::map<std::string, std::string> said;
};

// What `more` says, and where it says nothing, what `first` says.
Sizing merged(const Sizing& first, const Sizing& more);

// The members of an object that say it: size_rule, min_pixels, max_pixels, max_long_side_pixel, fps, min_frames,
// max_frames, total_pixels, detail; null members are as absent. `path` begins the names in errors. `others`: whether
// further members are fine. Errors: a type or word that is wrong, both rules' bounds at once, another member.
Sizing read_sizing(const chat::Value& object, const std::string& path, bool others);

// A request's: the members above in `mm_processor_kwargs`, in its `images_kwargs` and `videos_kwargs`, at the top of
// the body (max_long_side_pixel, min_pixels, max_pixels, fps, size_rule), and `media_io_kwargs.video` (fps,
// num_frames).
struct RequestSizing {
  Sizing images, videos;
};
RequestSizing read_request_sizing(const chat::Value& body);
// The members that it reads.
inline constexpr const char* request_sizing_names[] = {
    "mm_processor_kwargs", "media_io_kwargs", "max_long_side_pixel", "min_pixels", "max_pixels", "fps", "size_rule"};

// mm_processor_kwargs as a flag has it, JSON text, into the defaults. Errors (usage) name the flag.
void apply_processor_kwargs(const std::string& json, const std::string& flag, MediaOptions& options);

// A flag like vLLM's --limit-mm-per-prompt: JSON ('{"image": 4, "video": {"count": 1}}') or image=4,video=1. Errors
// (usage) name the flag.
void apply_limits(const std::vector<std::string>& words, const std::string& flag, MediaOptions& options);

// Bounds without a rule choose the rule that has them. `detail` sets the long side where that rule holds and no bound
// is given: low 504, high 2016, of videos also default 1008; under the area rule it changes nothing. Errors, which
// begin with where it was said: what no picture could be sized by.
void apply(const Sizing& sizing, vision::ImageOptions& options);
void apply(const Sizing& sizing, vision::VideoOptions& options);

}  // namespace m3::media
