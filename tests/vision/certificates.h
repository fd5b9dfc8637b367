// Certificates by an authority of their own, made when a test runs.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace m3::test {

struct Certificate {
  std::string pem, key_pem;
};

class Authority {
 public:
  Authority() : key_(EVP_EC_gen("P-256")), own_(issue("CA:TRUE", "", 3600)) {}

  std::string pem() const {
    return text([&](BIO* out) { return PEM_write_bio_X509(out, own_.get()); });
  }

  // For `name`, "IP:127.0.0.1" or "DNS:localhost"; from an hour ago for so many seconds from now, which may be past.
  Certificate sign(const std::string& name, long seconds = 3600) const {
    const Key key(EVP_EC_gen("P-256"));
    const X509Pointer signed_one = issue("CA:FALSE", name, seconds, key.get());
    return {text([&](BIO* out) { return PEM_write_bio_X509(out, signed_one.get()); }), text([&](BIO* out) {
              return PEM_write_bio_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
            })};
  }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
    void operator()(BIO* bio) const { BIO_free(bio); }
    void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using X509Pointer = std::unique_ptr<X509, Free>;

  template <typename Write>
  static std::string text(Write write) {
    const std::unique_ptr<BIO, Free> out(BIO_new(BIO_s_mem()));
    if (write(out.get()) != 1) throw std::runtime_error("a certificate cannot be written");
    char* bytes = nullptr;
    const long size = BIO_get_mem_data(out.get(), &bytes);
    return {bytes, static_cast<std::size_t>(size)};
  }

  static void add(X509* to, int kind, const std::string& value) {
    const std::unique_ptr<X509_EXTENSION, Free> extension(X509V3_EXT_conf_nid(nullptr, nullptr, kind, value.c_str()));
    if (extension == nullptr || X509_add_ext(to, extension.get(), -1) != 1)
      throw std::runtime_error("no extension " + value);
  }

  // Without `own` the authority's own.
  X509Pointer issue(const std::string& constraints, const std::string& name, long seconds,
                    EVP_PKEY* own = nullptr) const {
    X509Pointer made(X509_new());
    X509* const one = made.get();
    X509_set_version(one, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(one), own == nullptr ? 1 : 2);
    X509_gmtime_adj(X509_getm_notBefore(one), -7200);
    X509_gmtime_adj(X509_getm_notAfter(one), seconds);
    X509_set_pubkey(one, own == nullptr ? key_.get() : own);
    const auto name_it = [](X509_NAME* to, const char* text) {
      X509_NAME_add_entry_by_txt(to, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(text), -1, -1, 0);
    };
    name_it(X509_get_subject_name(one), own == nullptr ? "test authority" : "test server");
    X509_set_issuer_name(one, X509_get_subject_name(own == nullptr ? one : own_.get()));
    add(one, NID_basic_constraints, "critical," + constraints);
    if (!name.empty()) add(one, NID_subject_alt_name, name);
    if (X509_sign(one, key_.get(), EVP_sha256()) == 0) throw std::runtime_error("a certificate cannot be signed");
    return made;
  }

  Key key_;
  X509Pointer own_;
};

}  // namespace m3::test
