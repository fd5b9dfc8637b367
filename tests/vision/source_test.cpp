#include "src/vision/source.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

#include "m3/error.h"
#include "tests/support/temporary_directory.h"
#include "tests/vision/raw_server.h"

namespace m3::vision {
namespace {

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string load(const std::string& url, const SourceOptions& options = {}, std::int64_t limit = 1000) {
  return text_of(load_source(url, options, limit));
}

std::string error_of(const std::string& url, const SourceOptions& options = {}, std::int64_t limit = 1000) {
  try {
    load_source(url, options, limit);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    std::string line = error.what();
    EXPECT_LT(line.size(), 400u);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    return line;
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(DataUrls, Base64AndPlain) {
  EXPECT_EQ(load("data:image/png;base64,aGVsbG8="), "hello");
  EXPECT_EQ(load("data:image/png;base64,aGVsbG8"), "hello") << "without padding";
  EXPECT_EQ(load("data:;base64,aGVs\r\n bG8=\n"), "hello") << "wrapped";
  EXPECT_EQ(load("DATA:text/html;charset=x;base64,aGVsbG8%3D"), "hello");
  EXPECT_EQ(load("data:image/png;BASE64,aGVsbG8="), "hello");
  EXPECT_EQ(load("data:;base64,_-8="), load("data:;base64,/+8="));
  EXPECT_EQ(load("data:,a%20b%00c"), std::string("a b\0c", 5));
  const std::string all = load("data:;base64,AAECAwQFBgcICQ==");
  ASSERT_EQ(all.size(), 10u);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<char>(i));
}

TEST(DataUrls, RefusedWithOneLine) {
  EXPECT_TRUE(contains(error_of("data:image/png;base64,aGV*bG8="), "character 3"));
  EXPECT_TRUE(contains(error_of("data:image/png;base64,a"), "cut short"));
  EXPECT_NE(error_of("data:image/png;base64,aG=Vs"), "");
  EXPECT_NE(error_of("data:image/png;base64,"), "");
  EXPECT_NE(error_of("data:image/png;base64"), "");
  EXPECT_NE(error_of("data:,%4"), "");
  EXPECT_NE(error_of("data:,%zz"), "");
  EXPECT_TRUE(contains(error_of("data:;base64," + std::string(4000, 'A'), {}, 1000), "1000"));
  EXPECT_EQ(error_of("data:;base64," + std::string(1336, 'A'), {}, 1002), "");
  // The data is no part of a message.
  EXPECT_EQ(short_url("data:image/png;base64,SECRET"), "data:image/png;base64…");
  EXPECT_NE(error_of(""), "");
  EXPECT_NE(error_of("ftp://example.org/a.png"), "");
  EXPECT_NE(error_of("/etc/passwd"), "");
}

class LocalFiles : public testing::Test {
 protected:
  LocalFiles() {
    std::filesystem::create_directories(root() / "inner");
    write(root() / "inner" / "a b.png", "picture");
    write(directory.path() / "secret", "secret");
    write(directory.path() / "root-twin", "twin");
    options.local_root = root();
  }
  std::filesystem::path root() const { return directory.path() / "root"; }
  static void write(const std::filesystem::path& path, const std::string& text) { std::ofstream(path) << text; }

  test::TemporaryDirectory directory;
  SourceOptions options;
};

TEST_F(LocalFiles, BelowTheRootAlone) {
  const std::string base = "file://" + root().string();
  EXPECT_EQ(load(base + "/inner/a%20b.png", options), "picture");
  EXPECT_EQ(load(base + "/inner/../inner/a b.png", options), "picture");
  EXPECT_EQ(load("file://localhost" + root().string() + "/inner/a%20b.png", options), "picture");
  EXPECT_EQ(load("file:" + root().string() + "/inner/a%20b.png", options), "picture");

  const std::string same = error_of(base + "/none", options);
  EXPECT_TRUE(contains(same, "no such file"));
  const auto refused = [&](const std::string& rest) {
    return contains(error_of("file://" + rest, options), "no such file");
  };
  EXPECT_TRUE(refused(root().string() + "/../secret"));
  EXPECT_TRUE(refused(root().string() + "/%2e%2e/secret"));
  EXPECT_TRUE(refused(root().string() + "-twin"));
  EXPECT_TRUE(refused(root().string()));
  EXPECT_TRUE(refused(root().string() + "/inner"));
  EXPECT_TRUE(refused("/etc/passwd"));
  EXPECT_TRUE(refused("/dev/zero"));
  EXPECT_TRUE(refused(root().string() + "/inner/a%20b.png%00.txt"));
  EXPECT_NE(error_of("file://other/etc/passwd", options), "");
  EXPECT_NE(error_of("file:secret", options), "");
  EXPECT_TRUE(contains(error_of(base + "/inner/a%20b.png", options, 3), "3 bytes"));
  EXPECT_TRUE(contains(error_of(base + "/inner/a%20b.png"), "not allowed"));
}

TEST_F(LocalFiles, LinksAndPipesLeadNowhere) {
  std::filesystem::create_symlink(directory.path() / "secret", root() / "link");
  std::filesystem::create_directory_symlink(directory.path(), root() / "up");
  std::filesystem::create_symlink("inner/a b.png", root() / "good");
  ASSERT_EQ(::mkfifo((root() / "pipe").c_str(), 0600), 0);
  const std::string base = "file://" + root().string();
  EXPECT_TRUE(contains(error_of(base + "/link", options), "no such file"));
  EXPECT_TRUE(contains(error_of(base + "/up/secret", options), "no such file"));
  EXPECT_TRUE(contains(error_of(base + "/pipe", options), "no such file"));
  EXPECT_EQ(load(base + "/good", options), "picture");
}

TEST(WebUrls, InTheirParts) {
  const WebUrl url = parse_web_url("HTTPS://Pics.Example.org:8443/a/b c.png?x=1#part");
  EXPECT_TRUE(url.secure);
  EXPECT_EQ(url.host, "pics.example.org");
  EXPECT_EQ(url.port, 8443);
  EXPECT_EQ(url.target, "/a/b%20c.png?x=1");
  EXPECT_EQ(parse_web_url("http://example.org").target, "/");
  EXPECT_EQ(parse_web_url("http://example.org?q").target, "/?q");
  EXPECT_EQ(parse_web_url("http://[::1]:81/").host, "::1");
  EXPECT_EQ(parse_web_url("http://example.org./").host, "example.org");
  for (const char* bad : {"http:/example.org", "http://", "http://user@example.org/", "http://a:b:c/", "http://a:0/",
                          "http://a:99999/", "http://a:8x/", "http://[::1/", "http://exa mple/", "http://a\\@b/",
                          "http://ex\tample.org/", "https://[::1]x/", "file:///etc/passwd"}) {
    EXPECT_THROW(parse_web_url(bad), Error) << bad;
  }
  EXPECT_EQ(resolve_redirect(url, "/c").target, "/c");
  EXPECT_EQ(resolve_redirect(url, "d.png").target, "/a/d.png");
  EXPECT_EQ(resolve_redirect(url, "?y").target, "/a/b%20c.png?y");
  EXPECT_EQ(resolve_redirect(url, "//other.org/e").host, "other.org");
  EXPECT_TRUE(resolve_redirect(url, "//other.org/e").secure);
  EXPECT_EQ(resolve_redirect(url, "http://third.org:5/f").port, 5);
  EXPECT_THROW(resolve_redirect(url, "file:///etc/passwd"), Error);
  EXPECT_THROW(resolve_redirect(url, "gopher://a/"), Error);
}

TEST(WebUrls, DomainsAndWhatLiesBelowThem) {
  const std::vector<std::string> domains = {"Example.org", "pics.net"};
  EXPECT_TRUE(domain_allowed("example.org", domains));
  EXPECT_TRUE(domain_allowed("a.b.example.org", domains));
  EXPECT_FALSE(domain_allowed("badexample.org", domains));
  EXPECT_FALSE(domain_allowed("example.org.evil.com", domains));
  EXPECT_FALSE(domain_allowed("net", domains));
  EXPECT_TRUE(domain_allowed("anything", {}));
}

TEST(WebUrls, PublicAddresses) {
  using boost::asio::ip::make_address;
  const auto open = [](const char* text) {
    const auto address = make_address(text);
    return address.is_v4() ? is_public_v4(address.to_v4().to_bytes()) : is_public_v6(address.to_v6().to_bytes());
  };
  for (const char* text : {"8.8.8.8", "1.1.1.1", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "192.169.0.1",
                           "2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"}) {
    EXPECT_TRUE(open(text)) << text;
  }
  for (const char* text : {"127.0.0.1",
                           "127.9.9.9",
                           "10.0.0.1",
                           "172.16.0.1",
                           "172.31.255.255",
                           "192.168.1.1",
                           "169.254.169.254",
                           "100.64.0.1",
                           "0.0.0.0",
                           "224.0.0.1",
                           "255.255.255.255",
                           "198.18.0.1",
                           "192.0.2.1",
                           "::1",
                           "::",
                           "fe80::1",
                           "fc00::1",
                           "fd12::1",
                           "ff02::1",
                           "::ffff:127.0.0.1",
                           "::ffff:10.0.0.1",
                           "64:ff9b::10.0.0.1",
                           "2001:db8::1",
                           "2001::1",
                           "2002:0a00:0001::1",
                           "::127.0.0.1",
                           "100::1"}) {
    EXPECT_FALSE(open(text)) << text;
  }
}

TEST(WebUrls, HostsOfFlags) {
  const auto line = [](std::string (*check)(const std::string&), const char* word) -> std::string {
    try {
      return "= " + check(word);
    } catch (const Error& error) {
      return error.what();
    }
  };
  const std::tuple<std::string (*)(const std::string&), const char*, const char*> cases[] = {
      {check_domain, "Example.org", "= example.org"},
      {check_domain, "example.org.", "= example.org"},
      {check_domain, "10.0.0.5", "= 10.0.0.5"},
      {check_domain, "2001:db8::1", "= 2001:db8::1"},
      {check_domain, "[2001:db8::1]", "= 2001:db8::1"},
      {check_domain, "http://a.com/", "a URL or a part of one"},
      {check_domain, "a.com/", "a URL or a part of one"},
      {check_domain, "me@a.com", "a URL or a part of one"},
      {check_domain, "a.com:80", "has a port"},
      {check_domain, "*.a.com", "a * stands alone"},
      {check_domain, "", "no host"},
      {check_domain, "a b", "no host"},
      {check_private_host, "10.0.0.5:8080", "= 10.0.0.5:8080"},
      {check_private_host, "Pictures:0080", "= pictures:80"},
      {check_private_host, "[fd00::5]:8080", "= fd00::5:8080"},
      {check_private_host, "a:b", "no host"},
      {check_private_host, "a:99999", "no host"},
      {check_private_host, "a:0", "no host"},
      {check_private_host, "a", "has no port"},
      {check_private_host, "a:", "has no port"},
      {check_private_host, ":80", "no host"},
      {check_private_host, "http://a:80", "a URL or a part of one"},
      {check_private_host, "fd00::5:80", "no host"},
  };
  for (const auto& [check, word, expected] : cases) {
    EXPECT_EQ(line(check, word).substr(0, std::strlen(expected)), expected) << word << ": " << line(check, word);
  }
}

std::string ok(const std::string& body, const std::string& more = "") {
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + more + "\r\n" + body;
}
std::string redirect(const std::string& to) {
  return "HTTP/1.1 302 Found\r\nLocation: " + to + "\r\nContent-Length: 0\r\n\r\n";
}

TEST(Fetching, FromATrustedHost) {
  test::RawServer hidden([](const std::string&) { return ok("hidden"); });
  test::RawServer server([&](const std::string& target) -> std::string {
    if (target == "/a") return ok("picture");
    if (target == "/chunks")
      return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\npic\r\n4\r\nture\r\n0\r\n\r\n";
    if (target == "/interim") {
      return "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok("picture");
    }
    if (target == "/switching") return "HTTP/1.1 101 Switching Protocols\r\n\r\n" + ok("picture");
    if (target == "/only-interim") return "HTTP/1.1 100 Continue\r\n\r\n";
    if (target == "/to-a") return redirect("/a");
    if (target == "/to-hidden") return redirect("http://" + hidden.host() + "/");
    if (target == "/to-file") return redirect("file:///etc/passwd");
    if (target == "/loop") return redirect("/loop");
    if (target == "/big") return ok(std::string(2000, 'x'));
    if (target == "/endless") return "HTTP/1.1 200 OK\r\n\r\n" + std::string(5000, 'x');
    if (target == "/short") return "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc";
    if (target == "/empty") return ok("");
    if (target == "/gzip") return ok("abc", "Content-Encoding: gzip\r\n");
    if (target == "/garbage") return "what is HTTP?\r\n\r\n";
    if (target == "/silent") return "";
    return "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
  });
  const std::string base = "http://" + server.host();
  SourceOptions options;
  EXPECT_TRUE(contains(error_of(base + "/a", options), "not allowed here"));
  options.web = true;
  EXPECT_TRUE(contains(error_of(base + "/a", options), "no public address"));
  EXPECT_TRUE(contains(error_of("http://localhost:" + server.host().substr(10) + "/a", options), "no public address"));
  EXPECT_EQ(server.requests(), 0) << "it was never connected to";

  options.fetch.private_hosts = {server.host()};
  options.fetch.seconds = 60;
  EXPECT_EQ(load(base + "/a", options), "picture");
  EXPECT_EQ(load(base + "/chunks", options), "picture");
  EXPECT_EQ(load(base + "/to-a", options), "picture");
  EXPECT_EQ(load(base + "/interim", options), "picture");
  EXPECT_TRUE(contains(error_of(base + "/switching", options), "status 101"));
  EXPECT_NE(error_of(base + "/only-interim", options), "");
  EXPECT_TRUE(contains(error_of(base + "/to-hidden", options), "no public address"));
  EXPECT_EQ(hidden.requests(), 0);
  EXPECT_NE(error_of(base + "/to-file", options), "");
  EXPECT_TRUE(contains(error_of(base + "/loop", options), "redirects"));
  EXPECT_TRUE(contains(error_of(base + "/big", options), "1000 bytes"));
  EXPECT_TRUE(contains(error_of(base + "/endless", options), "1000 bytes"));
  EXPECT_NE(error_of(base + "/short", options), "");
  EXPECT_NE(error_of(base + "/empty", options), "");
  EXPECT_TRUE(contains(error_of(base + "/gzip", options), "compressed"));
  EXPECT_NE(error_of(base + "/garbage", options), "");
  EXPECT_TRUE(contains(error_of(base + "/none", options), "404"));
  EXPECT_TRUE(contains(error_of("https://" + server.host() + "/a", options), "trusted connection"));

  options.fetch.domains = {"example.org"};
  EXPECT_TRUE(contains(error_of(base + "/a", options), "allowed ones"));
  options.fetch.domains = {"127.0.0.1"};
  EXPECT_EQ(load(base + "/a", options), "picture");
  options.fetch.seconds = 0.3;
  EXPECT_TRUE(contains(error_of(base + "/silent", options), "within 0.3 seconds"));
}

// OpenSSL's name for a file of authorities that are trusted beside none.
class Trusting {
 public:
  explicit Trusting(const test::Authority& authority) {
    test::write_file(folder_ / "authority.pem", authority.pem());
    setenv("SSL_CERT_FILE", (folder_ / "authority.pem").c_str(), 1);
  }
  ~Trusting() { unsetenv("SSL_CERT_FILE"); }
  Trusting(const Trusting&) = delete;
  Trusting& operator=(const Trusting&) = delete;

 private:
  test::TemporaryDirectory folder_;
};

TEST(Fetching, OverTls) {
  const test::Authority authority, stranger;
  const Trusting trusting(authority);
  test::RawServer plain([](const std::string&) { return ok("plain"); });
  test::RawServer other([](const std::string&) { return ok("moved"); }, authority.sign("IP:127.0.0.1"));
  const std::string no_goodbye(test::RawServer::no_goodbye);
  test::RawServer server(
      [&](const std::string& target) -> std::string {
        if (target == "/a") return ok("picture");
        if (target == "/until-the-end") return "HTTP/1.1 200 OK\r\n\r\npicture";
        if (target == "/abrupt") return ok("picture") + no_goodbye;
        if (target == "/cut") return "HTTP/1.1 200 OK\r\n\r\npict" + no_goodbye;
        if (target == "/to-a") return redirect("/a");
        if (target == "/to-other") return redirect("https://" + other.host() + "/");
        if (target == "/to-plain") return redirect("http://" + plain.host() + "/");
        return redirect("https://10.0.0.1/");
      },
      authority.sign("IP:127.0.0.1"));
  test::RawServer to_tls([&](const std::string&) { return redirect("https://" + server.host() + "/a"); });
  const std::string base = "https://" + server.host();
  SourceOptions options;
  options.web = true;
  options.fetch.seconds = 60;
  EXPECT_TRUE(contains(error_of(base + "/a", options), "no public address"));
  options.fetch.private_hosts = {server.host(), other.host(), plain.host(), to_tls.host()};
  EXPECT_EQ(load(base + "/a", options), "picture");
  EXPECT_EQ(load(base + "/to-a", options), "picture");
  EXPECT_EQ(load(base + "/to-other", options), "moved");
  EXPECT_EQ(load(base + "/to-plain", options), "plain");
  EXPECT_EQ(load("http://" + to_tls.host() + "/", options), "picture");
  EXPECT_TRUE(contains(error_of(base + "/to-inside", options), "no public address"));
  // A reply without a length ends with TLS's own end and with nothing else.
  EXPECT_EQ(load(base + "/until-the-end", options), "picture");
  EXPECT_EQ(load(base + "/abrupt", options), "picture");
  EXPECT_TRUE(contains(error_of(base + "/cut", options), "broke off"));

  const auto refused = [&](const test::Certificate& certificate) {
    test::RawServer false_one([](const std::string&) { return ok("picture"); }, certificate);
    options.fetch.private_hosts = {false_one.host()};
    EXPECT_TRUE(contains(error_of("https://" + false_one.host() + "/a", options), "no trusted connection"));
    EXPECT_EQ(false_one.requests(), 0) << "nothing was asked of it";
  };
  refused(stranger.sign("IP:127.0.0.1"));
  refused(authority.sign("IP:127.0.0.2"));
  refused(authority.sign("DNS:localhost"));
  refused(authority.sign("IP:127.0.0.1", -60));
}

}  // namespace
}  // namespace m3::vision
