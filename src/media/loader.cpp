#include "src/media/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <span>

#include "src/base/error.h"
#include "src/base/sha256.h"

namespace m3::media {
namespace {

std::string describe(const vision::SizeOptions& size) {
  if (size.rule == vision::SizeRule::area) return fmt::format("area {} {}", size.min_pixels, size.max_pixels);
  return fmt::format("long {} {}", size.max_long_side, size.min_short_side);
}

// All that decides the values beside the bytes.
std::string options_key(const Reference& reference, const vision::PatchShape& shape) {
  const std::string patches = fmt::format("{} {} {}", shape.temporal, shape.patch, shape.merge);
  if (reference.kind == Media::Kind::image) return fmt::format("image {} {}", describe(reference.image.size), patches);
  const vision::SamplingOptions& sampling = reference.video.sampling;
  return fmt::format("video {} {} {} {} {} {}", describe(reference.video.size), patches, sampling.fps,
                     sampling.min_frames, sampling.max_frames, reference.video.total_pixels);
}

vision::PatchShape shape_of(const MediaInfo& model) {
  return {.channels = 3, .temporal = model.temporal_patch_size, .patch = model.patch_size, .merge = model.merge_size};
}

std::int64_t value_bytes(const vision::Grid& grid, const vision::PatchShape& shape) {
  return grid.patches() * shape.values() * static_cast<std::int64_t>(sizeof(float));
}

// Text of data: URLs that is decoded on the caller's thread, of one URL and of a request's: some milliseconds.
constexpr std::size_t inline_url = std::size_t{4} << 20, inline_urls = std::size_t{8} << 20;
constexpr int local_threads = 2;

// A small picture that takes longer begins anew among the large ones: pictures of few bytes and pixels can be made
// slow.
constexpr std::chrono::seconds small_time{1};

const char* const small_kind = "small";
const char* const large_kind = "large";

// Thrown out of a decoder: the picture is not a small one.
struct TooLargeForSmall {};

using Clock = std::chrono::steady_clock;

// Values whose bytes go back when nobody holds them any more.
struct Held {
  std::vector<float> values;
  Share share;
};

Prepared hold(vision::Pixels pixels, Share share) {
  Prepared out;
  out.timestamps = std::move(pixels.timestamps);
  share.shrink_to(std::ssize(pixels.values) * static_cast<std::int64_t>(sizeof(float)));
  const auto held = std::make_shared<const Held>(Held{std::move(pixels.values), std::move(share)});
  out.media = {.kind = pixels.video ? Media::Kind::video : Media::Kind::image,
               .t = pixels.grid.t,
               .h = pixels.grid.h,
               .w = pixels.grid.w,
               .pixels = std::shared_ptr<const std::vector<float>>(held, &held->values),
               .features = nullptr,
               .key = {}};
  return out;
}

// A decoder's memory and time.
class Decoding {
 public:
  Decoding(DecodeMemory& memory, double seconds, bool large, std::function<void()> keep_on)
      : memory_(memory), seconds_(seconds), large_(large), keep_on_(std::move(keep_on)) {
    control_.check = [this] { check(); };
    control_.reserve = [this](std::int64_t bytes) { reserve(bytes); };
  }
  ~Decoding() { memory_.give_back(bytes_); }
  Decoding(const Decoding&) = delete;
  Decoding& operator=(const Decoding&) = delete;

  const vision::DecodeControl& control() const { return control_; }

 private:
  void check() const {
    keep_on_();
    const auto time = Clock::now() - begin_;
    if (!large_ && time > small_time) throw TooLargeForSmall();
    if (std::chrono::duration<double>(time).count() > seconds_) {
      fail("decoding takes longer than {} seconds; make it smaller or shorter, or raise --media-decode-timeout",
           seconds_);
    }
  }
  void reserve(std::int64_t bytes) {
    if (!large_ && bytes > memory_.small()) throw TooLargeForSmall();
    if (bytes <= bytes_) return;
    memory_.give_back(std::exchange(bytes_, 0));  // who waits holds nothing
    const auto before = Clock::now();
    memory_.take(bytes, keep_on_);
    bytes_ = bytes;
    begin_ += Clock::now() - before;
  }

  DecodeMemory& memory_;
  double seconds_;
  bool large_;
  std::function<void()> keep_on_;
  vision::DecodeControl control_;
  Clock::time_point begin_ = Clock::now();
  std::int64_t bytes_ = 0;
};

[[noreturn]] void nobody_waits() { throw Error(ErrorKind::internal, "nobody waits for it any more"); }

// What went wrong now, under the picture's name.
[[noreturn]] void rethrow_at(const std::string& path) try { throw; } catch (const MediaMemoryError& error) {
  throw MediaMemoryError(fmt::format("{}: {}", path, error.what()));
} catch (const Error& error) {
  throw Error(error.kind(), fmt::format("{}: {}", path, error.what()));
} catch (const std::bad_alloc&) {
  throw MediaMemoryError(fmt::format("{}: out of memory", path));
}

}  // namespace

MediaLoader::MediaLoader(const MediaOptions& options)
    : options_(with_machine_defaults(options)),
      budget_(std::make_shared<MemoryBudget>(options_.memory_bytes)),
      decode_memory_(options_.decode_memory_bytes),
      local_(local_threads, [](const std::string&) { return local_threads; }),
      web_(options_.fetches, [this](const std::string&) { return options_.fetches_per_host; }),
      decode_(options_.threads + 1, [this](const std::string& kind) {
        return kind == large_kind ? options_.threads : options_.threads + 1;
      }) {}

void MediaLoader::stop() {
  stopping_ = true;
  local_.stop();
  web_.stop();
  decode_.stop();
  std::unordered_set<std::shared_ptr<Job>> dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(jobs_);
  for (const auto& job : dropped) job->done_ = nullptr;  // it may hold the job
}

std::size_t MediaLoader::open() const {
  const std::lock_guard lock(mutex_);
  return jobs_.size();
}

std::size_t MediaLoader::waiting() const {
  const std::lock_guard lock(mutex_);
  return jobs_.size() - decoding_jobs_;
}

std::shared_ptr<MediaLoader::Job> MediaLoader::load(std::vector<Reference> references, const MediaInfo& model,
                                                    std::int64_t most_tokens, Done done, std::int64_t others_waiting) {
  auto job = std::make_shared<Job>();
  job->references_ = std::move(references);
  job->model_ = model;
  job->most_tokens_ = most_tokens;
  job->done_ = std::move(done);
  const std::size_t count = job->references_.size();
  job->prepared_.resize(count);
  job->problems_.resize(count);
  job->tokens_of_.resize(count);
  job->failed_at_ = count;
  // What costs little is looked at now: with all of it in the cache, the job waits for nothing.
  std::vector<std::shared_ptr<Source>> sources(count);
  std::vector<bool> over(count, false);
  std::size_t text = 0;
  for (std::size_t i = 0; i < count && job->failed_at_ == count; ++i) {
    const std::string& url = job->references_[i].url;
    if (!vision::is_data_url(url) || url.size() > inline_url || text + url.size() > inline_urls) continue;
    text += url.size();
    try {
      try {
        sources[i] = std::make_shared<Source>(read(*job, i));
        over[i] = find_cached(*job, i, *sources[i]);
      } catch (...) {
        rethrow_at(job->references_[i].path);
      }
    } catch (...) {
      job->problems_[i] = std::current_exception();
      job->failed_at_ = i;
    }
  }
  const std::size_t end = job->failed_at_;
  job->left_ =
      static_cast<std::size_t>(std::count(over.begin(), over.begin() + static_cast<std::ptrdiff_t>(end), false));
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) throw Error(ErrorKind::busy, "pictures are not loaded any more: this is the end");
    const auto waiting = static_cast<std::int64_t>(jobs_.size() - decoding_jobs_) + others_waiting;
    if (job->left_ > 0 && waiting >= options_.most_waiting) {
      throw Error(ErrorKind::busy, fmt::format("{} requests wait already; try again later", waiting));
    }
    jobs_.insert(job);
  }
  if (job->left_ == 0) {
    finish(job);
    return job;
  }
  for (std::size_t i = 0; i < end; ++i) {
    if (over[i]) continue;
    std::exception_ptr problem;
    try {
      if (sources[i]) {
        post_decode(job, i, sources[i], job->references_[i].kind == Media::Kind::video);
      } else {
        post_source(job, i);
      }
    } catch (...) {
      problem = std::current_exception();
    }
    if (!problem) continue;
    // Those behind are not begun.
    const auto behind = std::count(over.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                   over.begin() + static_cast<std::ptrdiff_t>(end), false);
    fail_at(job, i, std::move(problem));
    through(job, static_cast<std::size_t>(behind));
    break;
  }
  return job;
}

void MediaLoader::cancel(const std::shared_ptr<Job>& job) {
  job->cancelled_ = true;
  drop(job, 0);
}

std::vector<Prepared> MediaLoader::load_now(std::vector<Reference> references, const MediaInfo& model,
                                            std::int64_t most_tokens, const std::function<bool()>& stop) {
  if (references.empty()) return {};
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::vector<Prepared> prepared;
  std::exception_ptr problem;
  const auto job =
      load(std::move(references), model, most_tokens, [&](std::vector<Prepared> results, std::exception_ptr error) {
        const std::lock_guard lock(mutex);
        prepared = std::move(results);
        problem = std::move(error);
        over = true;
        changed.notify_all();
      });
  std::unique_lock lock(mutex);
  while (!changed.wait_for(lock, std::chrono::milliseconds(50), [&] { return over; })) {
    if (!stop || !stop()) continue;
    lock.unlock();
    cancel(job);
    lock.lock();
  }
  if (problem) std::rethrow_exception(std::move(problem));
  return prepared;
}

bool MediaLoader::needless(const Job& job, std::size_t i) const {
  return stopping_ || job.cancelled_ || i > job.failed_at_;
}

void MediaLoader::run(const std::shared_ptr<Job>& job, std::size_t i, const std::function<bool()>& step) {
  bool is_through = true;
  std::exception_ptr problem;
  try {
    if (!needless(*job, i)) {
      try {
        is_through = step();
      } catch (...) {
        rethrow_at(job->references_[i].path);
      }
    }
  } catch (...) {
    problem = std::current_exception();
  }
  // Outside of the handler, which holds it too.
  if (problem) return fail_at(job, i, std::move(problem));
  if (is_through) through(job, 1);
}

void MediaLoader::through(const std::shared_ptr<Job>& job, std::size_t count) {
  {
    const std::lock_guard lock(mutex_);
    job->left_ -= count;
    if (count == 0 || job->left_ > 0) return;
  }
  finish(job);
}

// Pictures before it go on: the first that fails is the same whatever the threads do.
void MediaLoader::fail_at(const std::shared_ptr<Job>& job, std::size_t i, std::exception_ptr problem) {
  {
    const std::lock_guard lock(mutex_);
    job->problems_[i] = std::move(problem);
    if (i < job->failed_at_) job->failed_at_ = i;
  }
  drop(job, i + 1);
  through(job, 1);
}

void MediaLoader::drop(const std::shared_ptr<Job>& job, std::size_t from) {
  std::size_t count = 0;
  for (Lane* lane : {&local_, &web_, &decode_}) count += lane->drop(job.get(), from).size();
  through(job, count);
}

// Of a job that is in nobody's hands any more.
void MediaLoader::finish(const std::shared_ptr<Job>& job) {
  Done done;
  {
    const std::lock_guard lock(mutex_);
    if (jobs_.erase(job) == 0) return;  // stop() was before
    done = std::move(job->done_);
    job->done_ = nullptr;
  }
  std::exception_ptr problem;
  for (std::exception_ptr& one : job->problems_) {
    if (one && !problem) problem = std::move(one);
  }
  job->problems_.clear();
  if (job->cancelled_ || (problem == nullptr && stopping_)) {
    problem = std::make_exception_ptr(Error(ErrorKind::internal, "the request was cancelled"));
  }
  if (stopping_) return;
  auto prepared = problem ? std::vector<Prepared>() : std::move(job->prepared_);
  done(std::move(prepared), std::move(problem));
}

void MediaLoader::post_source(const std::shared_ptr<Job>& job, std::size_t i) {
  const auto step = [this, job, i] {
    const auto source = std::make_shared<Source>(read(*job, i));
    if (find_cached(*job, i, *source)) return true;
    post_decode(job, i, source, job->references_[i].kind == Media::Kind::video);
    return false;
  };
  const std::string host = vision::web_host(job->references_[i].url);
  (host.empty() ? local_ : web_).post(job.get(), host, i, [this, job, i, step] { run(job, i, step); });
  if (needless(*job, i)) drop(job, i);
}

void MediaLoader::post_decode(const std::shared_ptr<Job>& job, std::size_t i, const std::shared_ptr<Source>& source,
                              bool large) {
  const auto step = [this, job, i, source, large] {
    {
      const std::lock_guard lock(mutex_);
      if (job->decoding_++ == 0) ++decoding_jobs_;
    }
    ++decodings_;
    bool is_through = true;
    std::exception_ptr problem;
    try {
      decode(*job, i, *source, large);
    } catch (const TooLargeForSmall&) {
      is_through = false;
    } catch (...) {
      problem = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      if (--job->decoding_ == 0) --decoding_jobs_;
    }
    if (problem) std::rethrow_exception(std::move(problem));
    if (is_through) {
      *source = {};  // before done() hears of it
    } else {
      post_decode(job, i, source, true);
    }
    return is_through;
  };
  decode_.post(job.get(), large ? large_kind : small_kind, i, [this, job, i, step] { run(job, i, step); });
  if (needless(*job, i)) drop(job, i);
}

MediaLoader::Source MediaLoader::read(Job& job, std::size_t i) {
  Reference& reference = job.references_[i];
  const std::int64_t limit =
      reference.kind == Media::Kind::image ? reference.image.limits.bytes : reference.video.limits.bytes;
  Source source;
  source.share = Share(budget_, 0);
  vision::SourceOptions sources = options_.sources;
  sources.fetch.stop = [&] { return needless(job, i); };
  // Of all sources: before a file or the text of a URL is read, and as bytes come from the web.
  sources.received = [&](std::int64_t bytes) {
    if (bytes <= source.share.bytes()) return;
    make_room(bytes - source.share.bytes());
    source.share.add(bytes - source.share.bytes());
  };
  source.bytes = vision::load_source(reference.url, sources, limit);
  source.share.shrink_to(std::ssize(source.bytes));
  source.key =
      fmt::format("{:02x} ", fmt::join(sha256({}, source.bytes), "")) + options_key(reference, shape_of(job.model_));
  reference.url = {};  // may be large
  return source;
}

bool MediaLoader::find_cached(Job& job, std::size_t i, const Source& source) {
  if (!find(source.key, job.prepared_[i])) return false;
  const Media& media = job.prepared_[i].media;
  admit(job, i, {media.t, media.h, media.w}, 0);
  return true;
}

void MediaLoader::decode(Job& job, std::size_t i, const Source& source, bool large) {
  // Another one may have been decoding the same.
  if (find_cached(job, i, source)) return;
  Decoding decoding(decode_memory_, options_.decode_seconds, large, [&] {
    if (needless(job, i)) nobody_waits();
  });
  Prepared prepared = job.references_[i].kind == Media::Kind::image ? prepare_image(job, i, source, decoding.control())
                                                                    : prepare_video(job, i, source, decoding.control());
  prepared.media.key = source.key;
  keep(source.key, prepared);
  job.prepared_[i] = std::move(prepared);
}

void MediaLoader::make_room(std::int64_t bytes) {
  while (!budget_->take(bytes)) {
    if (!forget_one()) throw MediaMemoryError("pictures of other requests hold the memory for them; try again later");
  }
}

void MediaLoader::admit(Job& job, std::size_t i, const vision::Grid& grid, std::int64_t bytes) const {
  const MediaInfo& model = job.model_;
  const std::int64_t together = std::min<std::int64_t>(grid.t, model.segment_groups) * grid.h * grid.w;
  if (together > model.max_patches) {
    fail(
        "{} patches attend to each other, but memory was planned for {}; make it smaller or raise "
        "--max-picture-patches",
        together, model.max_patches);
  }
  const std::int64_t tokens = grid.tokens(model.merge_size);
  if (job.tokens_ += tokens - std::exchange(job.tokens_of_[i], tokens); job.tokens_ > job.most_tokens_) {
    fail("with its {} tokens the pictures take more than the context's {}; make them smaller or fewer", tokens,
         job.most_tokens_);
  }
  if (bytes > budget_->limit()) {
    fail("needs {} bytes, more than the {} for all pictures (--media-memory-bytes)", bytes, budget_->limit());
  }
}

Share MediaLoader::room_for(std::int64_t bytes) {
  make_room(bytes);
  return {budget_, bytes};
}

Prepared MediaLoader::prepare_image(Job& job, std::size_t i, const Source& source,
                                    const vision::DecodeControl& control) {
  vision::ImageOptions options = job.references_[i].image;
  options.shape = shape_of(job.model_);
  std::int64_t bytes = 0;
  vision::DecodeControl sized = control;
  sized.sized = [&](const vision::Size& size) {
    const vision::Grid grid =
        vision::grid_of(vision::resized_size(size, options.size, options.shape), 1, options.shape);
    bytes = value_bytes(grid, options.shape);
    admit(job, i, grid, bytes);
  };
  const vision::DecodedImage image = vision::decode_image(source.bytes, options.limits, sized);
  sized.declare({image.picture.width, image.picture.height});  // what was really in it
  Share share = room_for(bytes);
  return hold(vision::image_pixels(image.picture, options), std::move(share));
}

Prepared MediaLoader::prepare_video(Job& job, std::size_t i, const Source& source,
                                    const vision::DecodeControl& control) {
  vision::VideoOptions options = job.references_[i].video;
  options.shape = shape_of(job.model_);
  vision::VideoReader reader(source.bytes, options.limits, control);
  const vision::VideoPlan plan = vision::plan_video(reader, options);
  const std::int64_t bytes = value_bytes(plan.grid, options.shape);
  admit(job, i, plan.grid, bytes);
  Share share = room_for(bytes);
  return hold(vision::video_pixels(reader, plan, options), std::move(share));
}

bool MediaLoader::find(const std::string& key, Prepared& out) {
  const std::lock_guard lock(cache_mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return false;
  entries_.splice(entries_.begin(), entries_, found->second);
  out = found->second->prepared;
  return true;
}

void MediaLoader::keep(const std::string& key, const Prepared& prepared) {
  const std::int64_t bytes = std::ssize(*prepared.media.pixels) * std::int64_t{sizeof(float)};
  if (bytes > options_.cache_bytes) return;
  const std::lock_guard lock(cache_mutex_);
  if (by_key_.contains(key)) return;
  entries_.push_front({key, prepared, bytes});
  by_key_.emplace(key, entries_.begin());
  cached_bytes_ += bytes;
  while (cached_bytes_ > options_.cache_bytes) drop_last();
}

bool MediaLoader::forget_one() {
  const std::lock_guard lock(cache_mutex_);
  if (entries_.empty()) return false;
  drop_last();
  return true;
}

// Below the cache's lock.
void MediaLoader::drop_last() {
  cached_bytes_ -= entries_.back().bytes;
  by_key_.erase(entries_.back().key);
  entries_.pop_back();
}

}  // namespace m3::media
