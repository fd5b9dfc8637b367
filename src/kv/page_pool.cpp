#include "src/kv/page_pool.h"

#include <random>
#include <utility>

#include "src/base/error.h"

namespace m3::kv {

PagePool::PagePool(PageLayout layout, std::int32_t pages, ops::Backend* backend)
    : layout_(std::move(layout)), pages_(pages) {
  if (pages <= 0) fail_usage("a cache of {} pages: at least one page of 128 tokens is needed", pages);
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(layout_.page_bytes, std::int64_t{pages}, &bytes)) {
    fail_resource("a cache of {} pages of {} bytes is larger than the address space", pages, layout_.page_bytes);
  }
  memory_ = backend != nullptr ? backend->allocate(bytes) : ops::host_memory(bytes);
  free_.reserve(static_cast<std::size_t>(pages));
  for (std::int32_t page = pages - 1; page >= 0; --page) free_.push_back(page);
  references_.assign(static_cast<std::size_t>(pages), 0);
}

std::int32_t PagePool::allocate() {
  if (free_.empty()) return -1;
  const std::int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void PagePool::add_reference(std::int32_t page) {
  if (references_.at(static_cast<std::size_t>(page)) <= 0) fail_internal("page {} is free and cannot be shared", page);
  ++references_[static_cast<std::size_t>(page)];
}

void PagePool::release(std::int32_t page) {
  std::int32_t& references = references_.at(static_cast<std::size_t>(page));
  if (references <= 0) fail_internal("page {} is released twice", page);
  if (--references == 0) free_.push_back(page);
}

void PagePool::shuffle_free_pages(std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  for (std::size_t i = free_.size(); i > 1; --i) std::swap(free_[i - 1], free_[generator() % i]);
}

ops::LayerPages PagePool::layer(int layer) const {
  const auto view = [&](PartKind kind) {
    const Part* part = layout_.find(layer, kind);
    if (part == nullptr) return ops::PagePart{};
    return ops::PagePart{part->dtype, memory_.data() + part->offset * pages_, part->bytes};
  };
  ops::LayerPages pages;
  pages.k = view(PartKind::k);
  pages.v = view(PartKind::v);
  pages.index_k = view(PartKind::index_k);
  return pages;
}

SequencePages::SequencePages(SequencePages&& other) noexcept
    : pool_(other.pool_), length_(std::exchange(other.length_, 0)), pages_(std::move(other.pages_)) {
  other.pages_.clear();
}

bool SequencePages::extend(std::int64_t tokens) {
  const std::int64_t needed = (length_ + tokens + 127) / 128 - static_cast<std::int64_t>(pages_.size());
  if (needed > pool_->free_pages()) return false;
  for (std::int64_t i = 0; i < needed; ++i) pages_.push_back(pool_->allocate());
  length_ += tokens;
  return true;
}

void SequencePages::truncate(std::int64_t length) {
  if (length < 0 || length > length_) fail_internal("truncate to {} of {} tokens", length, length_);
  const std::size_t keep = static_cast<std::size_t>((length + 127) / 128);
  while (pages_.size() > keep) {
    pool_->release(pages_.back());
    pages_.pop_back();
  }
  length_ = length;
}

void SequencePages::share(std::int32_t page) {
  if (length_ % 128 != 0) fail_internal("a whole page is shared after {} tokens", length_);
  pool_->add_reference(page);
  pages_.push_back(page);
  length_ += 128;
}

void SequencePages::replace(std::int64_t block, std::int32_t page) {
  std::int32_t& own = pages_.at(static_cast<std::size_t>(block));
  if (own == page) return;
  pool_->add_reference(page);
  pool_->release(std::exchange(own, page));
}

bool SequencePages::fork(const SequencePages& other, Copy& copy) {
  if (length_ != 0) fail_internal("a fork into a sequence of {} tokens", length_);
  const auto full = static_cast<std::size_t>(other.length_ / 128);
  copy = {};
  if (other.pages_.size() > full) {
    copy = {other.pages_[full], pool_->allocate()};
    if (copy.to < 0) return false;
  }
  for (std::size_t block = 0; block < full; ++block) share(other.pages_[block]);
  if (copy.to >= 0) pages_.push_back(copy.to);
  length_ = other.length_;
  return true;
}

}  // namespace m3::kv
