// Runs a fuzz target once on every file of the corpus folders given, and on truncations of each: what ctest runs where no
// libFuzzer is built. Fails when a folder is empty, so that a lost corpus is seen.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  size_t num_files = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
      // Exact-size copies, so that the address sanitizer sees a read past the end.
      const size_t step = bytes.size() / 64 + 1;
      for (size_t size = 0; size <= bytes.size(); size += step) {
        const std::vector<uint8_t> part(bytes.begin(), bytes.begin() + static_cast<long>(size));
        LLVMFuzzerTestOneInput(part.data(), part.size());
      }
      const std::vector<uint8_t> whole(bytes.begin(), bytes.end());
      LLVMFuzzerTestOneInput(whole.data(), whole.size());
      ++num_files;
    }
  }
  std::printf("%zu corpus files replayed, each whole and truncated\n", num_files);
  return num_files > 0 ? 0 : 1;
}
