#include "src/base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "src/base/console.h"

namespace m3 {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto terminal_interval = std::chrono::milliseconds(100);
constexpr auto line_interval = std::chrono::seconds(5);  // a log should not fill with progress
constexpr auto silent_start = std::chrono::seconds(1);

}  // namespace

Progress::Progress(std::string what, std::int64_t total, std::string unit)
    : what_(std::move(what)),
      total_(std::max<std::int64_t>(total, 1)),
      unit_(std::move(unit)),
      terminal_(::isatty(STDERR_FILENO) != 0),
      start_(Clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (shown_) show(done_, true);
}

void Progress::update(std::int64_t done) {
  done_ = done;
  const auto now = Clock::now();
  if (now - start_ < silent_start ||
      now - last_ < (terminal_ ? Clock::duration(terminal_interval) : Clock::duration(line_interval)))
    return;
  last_ = now;
  show(done, false);
}

void Progress::show(std::int64_t done, bool last) {
  shown_ = true;
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total_));
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const double left = share > 0 ? seconds / share - seconds : 0;
  const std::string amount = unit_ == "bytes" ? fmt::format("{:.1f}/{:.1f} GiB", static_cast<double>(done) / 0x1p30,
                                                            static_cast<double>(total_) / 0x1p30)
                                              : fmt::format("{}/{} {}", done, total_, unit_);
  if (!terminal_) {
    write_error(fmt::format("{}: {:.0f} % ({}), {:.0f} s\n", what_, share * 100, amount, seconds));
    return;
  }
  constexpr int width = 30;
  const int full = static_cast<int>(share * width);
  write_error(
      fmt::format("\r{} [{}{}] {:3.0f} % {} {}\033[K{}", what_, std::string(static_cast<std::size_t>(full), '#'),
                  std::string(static_cast<std::size_t>(width - full), '.'), share * 100, amount,
                  last ? fmt::format("{:.0f} s", seconds) : fmt::format("{:.0f} s left", left), last ? "\n" : ""));
}

}  // namespace m3
