// Work in turns, and the memory that decoders share.
#include "src/media/lane.h"

#include <gtest/gtest.h>

#include <future>

#include "src/media/media_memory.h"
#include "tests/support/test_server.h"

namespace m3::media {
namespace {

using test::eventually;

int unbounded(const std::string&) { return 1000; }

// What holds a thread until it is let go.
class Gate {
 public:
  std::function<void()> work() {
    return [this] {
      ++inside_;
      opened_.wait();
    };
  }
  int inside() const { return inside_; }
  void open() { promise_.set_value(); }

 private:
  std::promise<void> promise_;
  std::shared_future<void> opened_ = promise_.get_future().share();
  std::atomic<int> inside_ = 0;
};

class Lanes : public testing::Test {
 protected:
  std::function<void()> note(char name) {
    return [this, name] {
      const std::lock_guard lock(mutex_);
      order_ += name;
    };
  }
  std::string order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }
  const int a_ = 0, b_ = 0, c_ = 0;  // owners

 private:
  std::mutex mutex_;
  std::string order_;
};

TEST_F(Lanes, OwnersTakeTurns) {
  Gate gate;
  Lane lane(1, unbounded);
  lane.post(&c_, "", 0, gate.work());
  ASSERT_TRUE(eventually([&] { return gate.inside() == 1; }));
  for (std::size_t i = 0; i < 4; ++i) lane.post(&a_, "", i, note('a'));
  for (std::size_t i = 0; i < 2; ++i) lane.post(&b_, "", i, note('b'));
  gate.open();
  EXPECT_TRUE(eventually([&] { return order() == "ababaa"; })) << order();
}

TEST_F(Lanes, KindsHaveBoundsAndLetOthersPass) {
  Gate gate;
  Lane lane(3, [](const std::string& kind) { return kind == "slow" ? 2 : 3; });
  for (std::size_t i = 0; i < 5; ++i) lane.post(&a_, "slow", i, gate.work());
  lane.post(&a_, "fast", 5, note('a'));
  lane.post(&b_, "fast", 0, note('b'));
  EXPECT_TRUE(eventually([&] { return order().size() == 2; }));
  EXPECT_EQ(gate.inside(), 2);
  EXPECT_EQ(lane.drop(&a_, 3), (std::vector<std::size_t>{3, 4}));
  gate.open();
  EXPECT_TRUE(eventually([&] { return gate.inside() == 3; }));
}

TEST_F(Lanes, DroppedWorkIsNotDone) {
  Gate gate;
  Lane lane(1, unbounded);
  lane.post(&c_, "", 0, gate.work());
  ASSERT_TRUE(eventually([&] { return gate.inside() == 1; }));
  lane.post(&a_, "", 0, note('a'));
  lane.post(&b_, "", 0, note('b'));
  EXPECT_EQ(lane.drop(&a_).size(), 1U);
  EXPECT_EQ(lane.drop(&a_).size(), 0U);
  gate.open();
  EXPECT_TRUE(eventually([&] { return order() == "b"; }));
  lane.stop();
  lane.post(&a_, "", 0, note('a'));
  EXPECT_EQ(order(), "b");
}

TEST(DecodeMemory, LargeOnesWaitInTheirOrderAndSmallOnesPass) {
  DecodeMemory memory(1000);  // 250 for small ones
  EXPECT_EQ(memory.small(), 250);
  const auto go_on = [] {};
  EXPECT_THROW(memory.take(751, go_on), Error);
  memory.take(700, go_on);
  std::atomic<int> asked = 0;
  const auto taken = [&](std::int64_t bytes) {
    return std::async(std::launch::async, [&memory, &asked, bytes] { memory.take(bytes, [&] { ++asked; }); });
  };
  std::future<void> first = taken(600);
  ASSERT_TRUE(eventually([&] { return asked > 0; }));
  std::future<void> second = taken(300);
  const int before = asked;
  ASSERT_TRUE(eventually([&] { return asked > before + 3; }));
  memory.take(250, go_on);  // small
  EXPECT_EQ(memory.used(), 950);
  memory.give_back(250);
  memory.give_back(700);
  first.get();
  EXPECT_NE(second.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  memory.give_back(600);
  second.get();
  memory.give_back(300);
  EXPECT_EQ(memory.used(), 0);
}

TEST(DecodeMemory, WhoGivesUpMakesWayForTheNext) {
  DecodeMemory memory(1000);
  const auto go_on = [] {};
  memory.take(700, go_on);
  std::atomic<bool> give_up = false;
  std::future<void> first = std::async(std::launch::async, [&] {
    memory.take(700, [&] {
      if (give_up) throw std::runtime_error("enough");
    });
  });
  std::future<void> second = std::async(std::launch::async, [&] { memory.take(300, go_on); });
  memory.give_back(700);
  memory.take(0, go_on);
  give_up = true;
  // Whichever of the two came first, both end.
  try {
    first.get();
    memory.give_back(700);
  } catch (const std::runtime_error&) {}
  second.get();
  memory.give_back(300);
  EXPECT_EQ(memory.used(), 0);
}

}  // namespace
}  // namespace m3::media
