#include "src/engine/head_start.h"

#include <vector>

namespace m3::engine {

namespace {

// Pages that a guess needs, taken for as long as it is made: the scheduler then gives out the same ones again, in the
// same order.
class BorrowedPages {
 public:
  explicit BorrowedPages(kv::PagePool& pool) : pool_(pool) {}
  ~BorrowedPages() {
    for (auto page = pages_.rbegin(); page != pages_.rend(); ++page) pool_.release(*page);
  }
  BorrowedPages(const BorrowedPages&) = delete;
  BorrowedPages& operator=(const BorrowedPages&) = delete;

  std::int32_t take() {
    const std::int32_t page = pool_.allocate();
    if (page >= 0) pages_.push_back(page);
    return page;
  }

 private:
  kv::PagePool& pool_;
  std::vector<std::int32_t> pages_;
};

}  // namespace

void HeadStart::begin(std::span<Sequence* const> sequences, std::span<const std::int32_t> rows) {
  rows_ = 0;
  guesses_.clear();
  batch_.clear();
  BorrowedPages borrowed(model_.pages());
  std::vector<std::int32_t> pages, logits_rows;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& sequence = *sequences[i];
    const std::int64_t position = std::ssize(sequence.tokens);
    pages.assign(sequence.pages.pages().begin(), sequence.pages.pages().end());
    if (std::ssize(pages) * ops::page_tokens == position) {
      const std::int32_t page = borrowed.take();
      if (page < 0) return;
      pages.push_back(page);
    }
    const TokenId drawn = -rows[i] - 1;  // what that row of the draw gives
    const auto row = static_cast<std::int32_t>(i);
    batch_.add({&drawn, 1}, position, pages);
    logits_rows.push_back(row);
    guesses_[{sequence.rank.request, sequence.rank.sample}] = {position, pages.back(), row};
  }
  if (sequences.empty()) return;
  model_.forward(batch_, logits_rows, {}, {}, {.logits_row = 0, .previous = model_.backend().sampled_ids()});
  rows_ = static_cast<std::int32_t>(sequences.size());
}

std::int32_t HeadStart::find(const Chunk& chunk) const {
  if (rows_ == 0 || chunk.count != 1 || chunk.draws != 1) return -1;
  const auto guess = guesses_.find({chunk.item->rank.request, chunk.item->rank.sample});
  if (guess == guesses_.end()) return -1;
  const bool same = guess->second.position == chunk.first() && guess->second.page == chunk.item->pages.pages().back();
  return same ? guess->second.row : -1;
}

}  // namespace m3::engine
