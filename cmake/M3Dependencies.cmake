# Libraries from the system's packages (scripts/packages.txt lists them).
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
add_library(m3_dependencies INTERFACE)
target_link_libraries(m3_dependencies INTERFACE Threads::Threads fmt::fmt)
if(M3_GPU_PROGRAMS)
  return()
endif()
find_package(nlohmann_json 3.11 REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(Boost 1.81 REQUIRED) # Asio and Beast, headers only
find_package(OpenSSL REQUIRED)
find_package(prometheus-cpp REQUIRED)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(libedit REQUIRED IMPORTED_TARGET libedit) # for m3_cli alone
# For m3_vision alone.
pkg_check_modules(image_decoders REQUIRED IMPORTED_TARGET libjpeg libpng libwebp libwebpdemux)
pkg_check_modules(ffmpeg REQUIRED IMPORTED_TARGET libavformat libavcodec libswscale libavutil)

target_link_libraries(m3_dependencies INTERFACE nlohmann_json::nlohmann_json spdlog::spdlog CLI11::CLI11
                                                PkgConfig::pcre2)
