// Pictures of requests: where their features stand in the prompt, and the features, computed once.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "m3/request.h"
#include "src/engine/loaded_model.h"

namespace m3::engine {

using FeatureRows = std::shared_ptr<const std::vector<std::byte>>;  // [rows, hidden] of the backend's activation type

struct Picture {
  Media::Kind kind = Media::Kind::image;
  model::PatchGrid grid;
  std::shared_ptr<const std::vector<float>> pixels, features;  // one of the two
  std::string key;
  // Prompt positions first, first + 1, … take the feature rows from `row` on. A clip has a run for each group.
  struct Run {
    std::int64_t first = 0, count = 0, row = 0;
  };
  std::vector<Run> runs;
  FeatureRows rows;  // null until needed, and again once the prompt is past
};

// Errors (usage): the model takes no pictures, sizes that do not fit, a picture larger than planned, values that are not
// finite.
std::vector<Picture> check_pictures(std::span<const Media> media, const LoadedModel& model);
// Fills in the runs. Errors (usage): other numbers of placeholders than of feature rows.
void place_pictures(std::span<const TokenId> prompt_ids, const LoadedModel& model, std::vector<Picture>& pictures);
// Both, of a request whose prompt_ids are filled; its media move into the result.
std::vector<Picture> take_pictures(Request& request, const LoadedModel& model);

// By 128-token block of the prompt: the keys of the pictures in it. Empty where there is no picture.
std::vector<std::string> block_salts(const std::vector<Picture>& pictures);

// Features by their pictures' keys, those used last, up to a number of bytes.
class FeatureCache {
 public:
  explicit FeatureCache(std::int64_t bytes) : limit_(bytes) {}
  FeatureRows find(const std::string& key);  // null: not there
  void keep(const std::string& key, FeatureRows rows);
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    std::string key;
    FeatureRows rows;
  };
  std::int64_t limit_;
  std::int64_t bytes_ = 0;
  std::list<Entry> entries_;  // used last first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
};

// On the engine's thread: features where a step needs them.
class PictureEncoder {
 public:
  PictureEncoder(LoadedModel& model, std::int64_t cache_bytes) : model_(model), cache_(cache_bytes) {}

  // Appends to `runs`, ascending, what positions [first, first + count) take; computes what is not there yet.
  void collect(std::vector<Picture>& pictures, std::int64_t first, std::int64_t count,
               std::vector<model::FeatureRun>& runs);
  // Lets go of the features of pictures that end before `position`.
  static void release(std::vector<Picture>& pictures, std::int64_t position);

  std::int64_t encoded() const { return encoded_; }
  std::int64_t reused() const { return reused_; }

 private:
  FeatureRows features_of(const Picture& picture);

  LoadedModel& model_;
  FeatureCache cache_;
  std::int64_t encoded_ = 0, reused_ = 0;
};

}  // namespace m3::engine
