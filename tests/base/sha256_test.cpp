#include "src/base/sha256.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace m3 {
namespace {

std::string hex(const Sha256& digest) { return fmt::format("{:02x}", fmt::join(digest, "")); }

// FIPS 180-4's examples.
TEST(Sha256, PublishedDigests) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, HeadAndBytesAreOneText) {
  const std::string text(1'000'000, 'a');
  const auto bytes = std::as_bytes(std::span(text));
  EXPECT_EQ(hex(sha256({}, bytes)), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(sha256(text.substr(0, 17), bytes.subspan(17)), sha256(text));
}

}  // namespace
}  // namespace m3
