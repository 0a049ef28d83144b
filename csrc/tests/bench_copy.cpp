// Prints GB/s of each copy kernel at one and two threads, interleaved so that a noisy machine hits all alike; best of several
// rounds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/copy.h"

namespace {

using Copier = std::function<void(std::byte*, const std::byte*, size_t, int64_t)>;

constexpr size_t kChunk = 4 << 20;

double gigabytes_per_s(std::byte* dst, const std::byte* src, size_t n, size_t threads, const Copier& copy) {
  const auto begin = std::chrono::steady_clock::now();
  const auto work = [&](size_t first) {
    for (size_t at = first * kChunk; at < n; at += threads * kChunk)
      copy(dst + at, src + at, std::min(kChunk, n - at), static_cast<int64_t>(at));
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < threads; ++i) others.emplace_back(work, i);
  work(0);
  for (std::thread& other : others) other.join();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(n) / elapsed.count() / 1e9;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t nbytes = (argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1024) << 20;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  auto* src = static_cast<std::byte*>(std::aligned_alloc(4096, nbytes + 4096));
  auto* dst = static_cast<std::byte*>(std::aligned_alloc(4096, nbytes + 4096));
  if (src == nullptr || dst == nullptr) return 1;
  std::memset(src, 7, nbytes + 4096);
  std::memset(dst, 1, nbytes + 4096);
  std::vector<std::pair<std::string, Copier>> copiers;
  copiers.emplace_back("memcpy", [](std::byte* d, const std::byte* s, size_t n, int64_t) { std::memcpy(d, s, n); });
  uint64_t sink = 0;
  for (const wt::Isa isa : {wt::Isa::Portable, wt::Isa::Avx2, wt::Isa::Avx512}) {
    const wt::CopyKernels* k = wt::kernels_of(isa);
    if (k == nullptr) continue;
    const std::string name = k->name;
    copiers.emplace_back(name + " copy", [k](std::byte* d, const std::byte* s, size_t n, int64_t) { k->copy(d, s, n); });
    const auto add = [&](const char* what, auto f) { copiers.emplace_back(name + what, f); };
    add(" copy+digest", [k, &sink](std::byte* d, const std::byte* s, size_t n, int64_t p) {
      __atomic_fetch_add(&sink, k->copy_digest(d, s, n, p), __ATOMIC_RELAXED);
    });
    add(" copy+digest, position 4 off", [k, &sink](std::byte* d, const std::byte* s, size_t n, int64_t p) {
      __atomic_fetch_add(&sink, k->copy_digest(d, s, n, p + 4), __ATOMIC_RELAXED);
    });
    add(" copy+digest, position 1 off", [k, &sink](std::byte* d, const std::byte* s, size_t n, int64_t p) {
      __atomic_fetch_add(&sink, k->copy_digest(d, s, n, p + 1), __ATOMIC_RELAXED);
    });
    add(" copy+digest cached", [k, &sink](std::byte* d, const std::byte* s, size_t n, int64_t p) {
      __atomic_fetch_add(&sink, k->copy_digest_cached(d, s, n, p), __ATOMIC_RELAXED);
    });
    add(" digest", [k, &sink](std::byte*, const std::byte* s, size_t n, int64_t p) {
      __atomic_fetch_add(&sink, k->digest(s, n, p), __ATOMIC_RELAXED);
    });
  }
  std::map<std::pair<std::string, size_t>, std::vector<double>> rates;
  for (int round = 0; round < rounds; ++round) {
    for (const size_t threads : {size_t{1}, size_t{2}}) {
      for (const auto& [name, copy] : copiers) rates[{name, threads}].push_back(gigabytes_per_s(dst, src, nbytes, threads, copy));
    }
  }
  std::printf("%-40s %10s %10s %10s %10s   (GB/s, best and median of %d)\n", "kernel", "1 best", "1 med", "2 best", "2 med",
              rounds);
  for (const auto& [name, copy] : copiers) {
    std::printf("%-40s", name.c_str());
    for (const size_t threads : {size_t{1}, size_t{2}}) {
      std::vector<double>& rate = rates[{name, threads}];
      std::sort(rate.begin(), rate.end());
      std::printf(" %10.2f %10.2f", rate.back(), rate[rate.size() / 2]);
    }
    std::printf("\n");
  }
  return 0;
}
