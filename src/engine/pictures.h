// Pictures of requests: where their features stand in the prompt, and the features, computed once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
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

// From `position` on, the first prompt position whose features are not there; the highest number: all are.
std::int64_t first_missing(std::span<const Picture> pictures, std::int64_t position);

// The pictures of one sequence, whose first `position` tokens are computed.
struct PictureNeed {
  std::vector<Picture>* pictures = nullptr;
  std::int64_t position = 0;
};

// On the engine's thread: features of the pictures that sequences need, computed in pieces between steps.
class PictureEncoder {
 public:
  // `piece`: multiplications and additions at a time; 0: some milliseconds of a device's, some tens of the host's.
  PictureEncoder(LoadedModel& model, std::int64_t cache_bytes, double piece = 0);

  // Fills in rows that are at hand: in the cache, or given with the request.
  void look_up(const PictureNeed& need);

  // A piece of the first missing picture of the first need that has one, and of others that are small enough to be seen
  // with it. What was begun and is named by no need any more is given up. `wait`: for the device to be done with the
  // piece before; else nothing is done while it is busy. True: a picture is missing, or has just become complete.
  bool work(std::span<const PictureNeed> needs, bool wait);

  // Appends to `runs`, ascending, what positions [first, first + count) take. Errors (internal): it is not there.
  void collect(std::span<const Picture> pictures, std::int64_t first, std::int64_t count,
               std::vector<model::FeatureRun>& runs) const;
  // Lets go of the features of pictures that end before `position`.
  static void release(std::vector<Picture>& pictures, std::int64_t position);

  std::int64_t encoded() const { return encoded_; }
  std::int64_t reused() const { return reused_; }
  std::int64_t pieces() const { return pieces_; }
  std::int64_t given_up() const { return given_up_; }

 private:
  // The pictures under way, one after another: what the tower reads stays here, and where its features go.
  struct Job {
    std::vector<std::string> keys;
    std::vector<model::PatchGrid> grids;
    std::shared_ptr<const std::vector<float>> pixels;
    std::vector<std::byte> rows;
    bool has(const std::string& key) const { return std::ranges::find(keys, key) != keys.end(); }
  };

  void begin(std::span<const Picture* const> pictures);
  // The first missing picture, then further ones that are worth a pass with it.
  std::vector<const Picture*> next_pictures(std::span<const PictureNeed> needs) const;
  void hand_out(const std::string& key, const FeatureRows& rows, std::span<const PictureNeed> needs);
  FeatureRows given_features(const Picture& picture) const;

  LoadedModel& model_;
  FeatureCache cache_;
  double piece_;
  std::optional<Job> job_;
  std::int64_t encoded_ = 0, reused_ = 0, pieces_ = 0, given_up_ = 0;
};

}  // namespace m3::engine
