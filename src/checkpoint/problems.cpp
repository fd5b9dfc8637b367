#include "src/checkpoint/problems.h"

#include <fmt/format.h>

#include <utility>

#include "src/base/error.h"

namespace m3 {

namespace {

constexpr std::size_t listed = 20;

}  // namespace

std::string printable(std::string_view name) {
  std::string text;
  for (const char c : name.substr(0, 200)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  if (name.size() > 200) text += "...";
  return text;
}

void ProblemList::add(std::string name, std::string expected, std::string found) {
  problems_.push_back({std::move(name), std::move(expected), std::move(found)});
}

void ProblemList::append(const ProblemList& other) {
  problems_.insert(problems_.end(), other.problems_.begin(), other.problems_.end());
}

std::string ProblemList::text() const {
  std::string lines;
  for (std::size_t i = 0; i < problems_.size() && i < listed; ++i) {
    const Problem& problem = problems_[i];
    lines += fmt::format("\n  {}: expected {}, found {}", printable(problem.name),
                         problem.expected.empty() ? "no such tensor" : problem.expected, problem.found);
  }
  if (problems_.size() > listed) lines += fmt::format("\n  and {} more", problems_.size() - listed);
  return lines;
}

void ProblemList::check(const std::string& what) const {
  if (problems_.empty()) return;
  fail("{}: {} problem{}{}", what, problems_.size(), problems_.size() == 1 ? "" : "s", text());
}

}  // namespace m3
