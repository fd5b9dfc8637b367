#include "src/engine/pictures.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>

#include "src/base/error.h"
#include "src/base/sha256.h"
#include "src/ops/ops.h"

namespace m3::engine {

namespace {

const char* kind_name(Media::Kind kind) { return kind == Media::Kind::image ? "image" : "video"; }

// The grid is part of every key: the same values in another shape are another picture.
std::string key_of(const Media& media) {
  const std::string head = fmt::format("{} {} {} {};", media.pixels ? "pixels" : "features", media.t, media.h, media.w);
  if (!media.key.empty()) return head + media.key;
  const Sha256 digest = sha256(head, std::as_bytes(std::span(media.pixels ? *media.pixels : *media.features)));
  return {digest.begin(), digest.end()};
}

void check_values(const Media& media, std::size_t index, const model::PatchGrid& grid, const model::VisionTower& tower,
                  std::int64_t most_patches) {
  const char* kind = kind_name(media.kind);
  if (media.kind == Media::Kind::image && media.t != 1)
    fail_usage("media {}: an image of {} temporal groups; it has one", index, media.t);
  try {
    tower.check(grid);
  } catch (const Error& error) {
    fail_usage("media {}: {}", index, error.what());
  }
  if ((media.pixels != nullptr) == (media.features != nullptr)) {
    fail_usage("media {}: give the {}'s pixels or its features, one of the two", index, kind);
  }
  if (media.pixels && tower.segment_patches(grid) > most_patches) {
    fail_usage(
        "media {}: {} patches of the {} attend to each other, but memory was planned for {}; make it smaller or raise "
        "--max-picture-patches",
        index, tower.segment_patches(grid), kind, most_patches);
  }
  const auto& values = media.pixels ? *media.pixels : *media.features;
  const std::int64_t expected =
      media.pixels ? grid.patches() * tower.pixel_columns() : tower.feature_rows(grid) * tower.feature_columns();
  if (std::ssize(values) != expected) {
    fail_usage("media {}: {} {} values where {} x {} x {} patches have {}", index, values.size(),
               media.pixels ? "pixel" : "feature", grid.t, grid.h, grid.w, expected);
  }
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
    fail_usage("media {}: a value of the {} is not a finite number", index, kind);
}

// Hands the placeholders of one kind to its pictures, in order.
void place(std::span<const TokenId> prompt_ids, Media::Kind kind, TokenId placeholder, const model::VisionTower& tower,
           std::vector<Picture>& pictures) {
  std::int64_t expected = 0;  // feature rows
  for (const Picture& picture : pictures) {
    if (picture.kind == kind) expected += tower.feature_rows(picture.grid);
  }
  std::size_t next = 0;    // picture
  std::int64_t row = 0;    // of it
  std::int64_t found = 0;  // placeholders
  for (std::size_t position = 0; position < prompt_ids.size(); ++position) {
    if (placeholder < 0 || prompt_ids[position] != placeholder) continue;
    if (++found > expected) continue;
    while (pictures[next].kind != kind || row == tower.feature_rows(pictures[next].grid)) {
      ++next;
      row = 0;
    }
    std::vector<Picture::Run>& runs = pictures[next].runs;
    const auto at = static_cast<std::int64_t>(position);
    if (runs.empty() || runs.back().first + runs.back().count != at) runs.push_back({at, 0, row});
    ++runs.back().count;
    ++row;
  }
  if (found != expected) {
    fail_usage("the prompt has {} placeholders (id {}) for {}s whose features are {} rows; the numbers must be equal",
               found, placeholder, kind_name(kind), expected);
  }
}

}  // namespace

std::vector<Picture> check_pictures(std::span<const Media> media, const LoadedModel& model) {
  if (media.empty()) return {};
  if (model.tower() == nullptr) fail_usage("{}", model.no_pictures());
  std::vector<Picture> pictures;
  for (std::size_t i = 0; i < media.size(); ++i) {
    const model::PatchGrid grid{media[i].t, media[i].h, media[i].w};
    check_values(media[i], i, grid, *model.tower(), model.vision_patches());
    pictures.push_back({.kind = media[i].kind,
                        .grid = grid,
                        .pixels = media[i].pixels,
                        .features = media[i].features,
                        .key = key_of(media[i]),
                        .runs = {},
                        .rows = nullptr});
  }
  return pictures;
}

void place_pictures(std::span<const TokenId> prompt_ids, const LoadedModel& model, std::vector<Picture>& pictures) {
  if (model.tower() == nullptr) return;  // and so there are no pictures
  const VisionConfig& vision = *model.config().vision;
  place(prompt_ids, Media::Kind::image, vision.image_token_id, *model.tower(), pictures);
  place(prompt_ids, Media::Kind::video, vision.video_token_id, *model.tower(), pictures);
}

std::vector<Picture> take_pictures(Request& request, const LoadedModel& model) {
  std::vector<Picture> pictures = check_pictures(request.media, model);
  place_pictures(request.prompt_ids, model, pictures);
  request.media.clear();
  return pictures;
}

std::vector<std::string> block_salts(const std::vector<Picture>& pictures) {
  std::vector<std::string> salts;
  for (const Picture& picture : pictures) {
    std::int64_t done = -1;  // the last block that has this picture's key
    for (const Picture::Run& run : picture.runs) {
      const std::int64_t last = (run.first + run.count - 1) / ops::page_tokens;
      for (std::int64_t block = std::max(run.first / ops::page_tokens, done + 1); block <= last; ++block) {
        if (block >= std::ssize(salts)) salts.resize(static_cast<std::size_t>(block) + 1);
        // With its length, so that two lists of keys never read the same.
        salts[static_cast<std::size_t>(block)] += fmt::format("{}:", picture.key.size()) + picture.key;
        done = block;
      }
    }
  }
  return salts;
}

FeatureRows FeatureCache::find(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->rows;
}

void FeatureCache::keep(const std::string& key, FeatureRows rows) {
  const std::int64_t size = std::ssize(*rows);
  if (size > limit_ || by_key_.contains(key)) return;
  while (bytes_ + size > limit_) {
    bytes_ -= std::ssize(*entries_.back().rows);
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
  entries_.push_front({key, std::move(rows)});
  by_key_.emplace(key, entries_.begin());
  bytes_ += size;
}

std::int64_t first_missing(std::span<const Picture> pictures, std::int64_t position) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const Picture& picture : pictures) {
    if (picture.rows) continue;
    for (const Picture::Run& run : picture.runs) {
      if (run.first + run.count > position) first = std::min(first, std::max(run.first, position));
    }
  }
  return first;
}

namespace {

// Of the positions from `position` on.
bool needs(const Picture& picture, std::int64_t position) {
  return !picture.runs.empty() && picture.runs.back().first + picture.runs.back().count > position;
}

bool is_missing(const Picture& picture, std::int64_t position) {
  return !picture.rows && picture.pixels && needs(picture, position);
}

// Pieces between which a step of others runs.
constexpr double device_piece = 1.5e12;
constexpr double host_piece = 8e9;

}  // namespace

PictureEncoder::PictureEncoder(LoadedModel& model, std::int64_t cache_bytes, double piece)
    : model_(model), cache_(cache_bytes), piece_(piece) {
  if (piece_ <= 0) piece_ = model.backend().has_host_memory() ? host_piece : device_piece;
}

void PictureEncoder::look_up(const PictureNeed& need) {
  for (Picture& picture : *need.pictures) {
    if (picture.rows || !needs(picture, need.position)) continue;
    picture.rows = cache_.find(picture.key);
    if (picture.rows) {
      ++reused_;
    } else if (picture.features) {
      picture.rows = given_features(picture);
      cache_.keep(picture.key, picture.rows);
    }
  }
}

FeatureRows PictureEncoder::given_features(const Picture& picture) const {
  const bool wide = model_.tower()->feature_dtype() == DType::f32;
  std::vector<std::byte> bytes(picture.features->size() * (wide ? 4 : 2));
  for (std::size_t i = 0; i < picture.features->size(); ++i) {
    const float value = (*picture.features)[i];
    const bf16 rounded = to_bf16(value);
    if (wide) {
      std::memcpy(bytes.data() + 4 * i, &value, 4);
    } else {
      std::memcpy(bytes.data() + 2 * i, &rounded, 2);
    }
  }
  return std::make_shared<const std::vector<std::byte>>(std::move(bytes));
}

std::vector<const Picture*> PictureEncoder::next_pictures(std::span<const PictureNeed> needs) const {
  std::vector<const Picture*> chosen;
  std::int64_t patches = 0;
  for (const PictureNeed& need : needs) {
    for (const Picture& picture : *need.pictures) {
      if (!is_missing(picture, need.position)) continue;
      const bool fits = patches + picture.grid.patches() <= model_.tower()->company_patches();
      if (!chosen.empty() && !fits) continue;
      const auto same = [&](const Picture* other) { return other->key == picture.key; };
      if (std::ranges::any_of(chosen, same)) continue;
      chosen.push_back(&picture);
      patches += picture.grid.patches();
    }
  }
  return chosen;
}

void PictureEncoder::begin(std::span<const Picture* const> pictures) {
  job_.emplace();
  std::int64_t rows = 0;
  for (const Picture* picture : pictures) {
    job_->keys.push_back(picture->key);
    job_->grids.push_back(picture->grid);
    rows += model_.tower()->feature_rows(picture->grid);
  }
  job_->pixels = pictures.front()->pixels;
  if (pictures.size() > 1) {
    std::vector<float> pixels;
    for (const Picture* picture : pictures)
      pixels.insert(pixels.end(), picture->pixels->begin(), picture->pixels->end());
    job_->pixels = std::make_shared<const std::vector<float>>(std::move(pixels));
  }
  const std::int64_t columns = model_.tower()->feature_columns();
  const DType dtype = model_.tower()->feature_dtype();
  job_->rows.resize(static_cast<std::size_t>(rows * columns) * dtype_size(dtype));
  model_.vision_tower().begin(job_->grids, *job_->pixels, {dtype, rows, columns, columns, job_->rows.data()});
}

bool PictureEncoder::work(std::span<const PictureNeed> needs, bool wait) {
  bool missing = false;
  bool wanted = false;  // something of the job
  for (const PictureNeed& need : needs) {
    for (const Picture& picture : *need.pictures) {
      if (!is_missing(picture, need.position)) continue;
      missing = true;
      wanted = wanted || (job_ && job_->has(picture.key));
    }
  }
  if (job_ && !wanted) {
    given_up_ += std::ssize(job_->keys);
    job_.reset();
  }
  if (!missing) return false;
  if (wait) {
    model_.vision_backend().synchronize();
  } else if (!model_.vision_backend().idle()) {
    return true;
  }
  if (!job_) begin(next_pictures(needs));
  ++pieces_;
  if (!model_.vision_tower().advance(piece_)) return true;
  const std::int64_t row_bytes = model_.tower()->feature_columns() * dtype_size(model_.tower()->feature_dtype());
  auto begin = job_->rows.begin();
  for (std::size_t i = 0; i < job_->keys.size(); ++i) {
    const auto end = begin + model_.tower()->feature_rows(job_->grids[i]) * row_bytes;
    hand_out(job_->keys[i], std::make_shared<const std::vector<std::byte>>(begin, end), needs);
    begin = end;
  }
  job_.reset();
  return true;
}

void PictureEncoder::hand_out(const std::string& key, const FeatureRows& rows, std::span<const PictureNeed> needs) {
  cache_.keep(key, rows);
  ++encoded_;
  bool first = true;  // it was computed for that one
  for (const PictureNeed& need : needs) {
    for (Picture& picture : *need.pictures) {
      if (picture.key != key || !is_missing(picture, need.position)) continue;
      picture.rows = rows;
      if (!first) ++reused_;
      first = false;
    }
  }
}

void PictureEncoder::collect(std::span<const Picture> pictures, std::int64_t first, std::int64_t count,
                             std::vector<model::FeatureRun>& runs) const {
  const auto begin = static_cast<std::ptrdiff_t>(runs.size());
  for (const Picture& picture : pictures) {
    for (const Picture::Run& run : picture.runs) {
      if (run.first >= first + count || run.first + run.count <= first) continue;
      if (!picture.rows) fail_internal("a step with a picture whose features are not there");
      const std::int64_t row_bytes = std::ssize(*picture.rows) / model_.tower()->feature_rows(picture.grid);
      runs.push_back({run.first, run.count, picture.rows->data() + run.row * row_bytes});
    }
  }
  std::sort(runs.begin() + begin, runs.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
}

void PictureEncoder::release(std::vector<Picture>& pictures, std::int64_t position) {
  for (Picture& picture : pictures) {
    if (!picture.runs.empty() && picture.runs.back().first + picture.runs.back().count <= position)
      picture.rows = nullptr;
  }
}

}  // namespace m3::engine
