// Memory for pages, and sequences' page tables over it. K, V and index-K share one page id and one lifetime.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/kv/page_layout.h"
#include "src/ops/ops.h"

namespace m3::kv {

class PagePool {
 public:
  // Memory of `backend`; null: of the host. There it is address space only, and comes from the system as pages are first
  // written. Errors: there is not that much (the line says how many bytes).
  PagePool(PageLayout layout, std::int32_t pages, ops::Backend* backend = nullptr);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  const PageLayout& layout() const { return layout_; }
  std::int32_t pages() const { return pages_; }
  std::int32_t free_pages() const { return static_cast<std::int32_t>(free_.size()); }
  std::int32_t references(std::int32_t page) const { return references_.at(static_cast<std::size_t>(page)); }

  // A page with one reference, or -1 when none is free. Content is undefined.
  std::int32_t allocate();
  void add_reference(std::int32_t page);
  void release(std::int32_t page);  // frees it with the last reference

  // Hands out pages in this pseudo-random order from now on (tests and `m3 trace --shuffle-pages`).
  void shuffle_free_pages(std::uint64_t seed);

  // Views for the operations; k_scale and v_scale are left at 1.
  ops::LayerPages layer(int layer) const;

 private:
  PageLayout layout_;
  std::int32_t pages_ = 0;
  ops::Memory memory_;
  std::vector<std::int32_t> free_;        // last one is handed out next
  std::vector<std::int32_t> references_;  // by page
};

// One sequence's pages. Length and pages grow together; truncate undoes speculation.
class SequencePages {
 public:
  explicit SequencePages(PagePool& pool) : pool_(&pool) {}
  ~SequencePages() { truncate(0); }
  SequencePages(SequencePages&& other) noexcept;
  SequencePages& operator=(SequencePages&&) = delete;
  SequencePages(const SequencePages&) = delete;

  std::int64_t length() const { return length_; }
  std::span<const std::int32_t> pages() const { return pages_; }

  // Room for `tokens` more. False, with nothing changed, when the pool has too few free pages.
  [[nodiscard]] bool extend(std::int64_t tokens);
  // Forgets all past `length` tokens and frees pages that hold none. Errors: length greater than now.
  void truncate(std::int64_t length);

  // Another holder's full page as this sequence's next 128 tokens. Errors: the length is no multiple of 128.
  void share(std::int32_t page);
  // Another page of the same content in the place of block `block`.
  void replace(std::int64_t block, std::int32_t page);
  // A page whose content goes into another; from -1: there is none.
  struct Copy {
    std::int32_t from = -1, to = -1;
  };
  // Makes this empty sequence the same tokens as `other`: full pages are shared, a partial last one is to be copied.
  // False, with nothing changed, when that needs a page and none is free.
  [[nodiscard]] bool fork(const SequencePages& other, Copy& copy);

 private:
  PagePool* pool_;
  std::int64_t length_ = 0;
  std::vector<std::int32_t> pages_;
};

}  // namespace m3::kv
