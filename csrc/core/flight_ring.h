// The flight recorder's ring: fixed-size records in a preallocated, mapped file that stays readable after
// SIGKILL.
//
// A record's stamp is (seq + 1) << 2 | phase. Writers take a record by moving its stamp with one
// compare-and-swap, so two writers never share one, whatever wraps: begin() takes a record that nobody is
// writing and that holds an older seq, end() takes it only while it still holds its own. The fields of
// begin() are final once the stamp says Started; the fields of end() once it says Ended. A process killed
// inside end() therefore leaves a readable started record, and one killed inside begin() a recognisably torn
// one. wtransport/recorder/format.py documents the file for readers; a test compares both.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/fork_guard.h"
#include "core/result.h"

namespace wt {

enum class FlightPhase : uint8_t { Ended = 0, Beginning = 1, Started = 2, Ending = 3 };
enum class FlightState : uint8_t { Started = 1, Done = 2, Failed = 3, Cancelled = 4 };

inline constexpr uint32_t kFlightVersion = 1;
inline constexpr uint64_t kFlightMaxRecords = 1 << 18;  // 64 MiB
inline constexpr int64_t kFlightNoVersion = INT64_MIN;
inline constexpr uint64_t kFlightNoSeq = UINT64_MAX;

struct FlightHeader {
  char magic[8];  // "WTRING", zero padded
  uint32_t format_version;
  uint32_t header_nbytes;
  uint32_t record_nbytes;
  uint32_t pid;
  uint64_t num_records;
  uint64_t wall_open_ns;  // CLOCK_REALTIME
  uint64_t mono_open_ns;  // CLOCK_MONOTONIC at the same moment
  uint32_t meta_nbytes;
  uint8_t padding[76];
  // Written while the ring lives, on a cache line of their own.
  uint64_t next_seq;
  uint64_t num_dropped;     // records whose place was still being written one whole round later
  uint64_t mono_closed_ns;  // 0: the process never closed the ring
  uint8_t padding_hot[40];
  uint8_t meta[3904];  // msgpack map
};

struct FlightRecord {
  static constexpr size_t kPeerNbytes = 40;
  static constexpr size_t kTextNbytes = 130;
  static constexpr size_t kDetailNbytes = 48;  // most that begin() may use of the text

  uint64_t stamp;
  // Of begin().
  uint64_t t_start_ns;
  int64_t version;
  uint64_t term;
  uint64_t nbytes_total;
  uint32_t publication;
  int32_t rank;
  uint32_t thread_id;
  uint16_t op;
  uint8_t backend;
  uint8_t peer_nbytes;
  uint8_t detail_nbytes;
  uint8_t padding[7];
  char peer[kPeerNbytes];
  // Of end().
  uint64_t t_end_ns;
  uint64_t nbytes_done;
  int32_t code;
  uint8_t state;
  uint8_t outcome_nbytes;
  // detail (of begin) from 0, outcome (of end) right behind it; without a detail there is more room to say
  // why it failed.
  char text[kTextNbytes];
};

static_assert(sizeof(FlightHeader) == 4096 && offsetof(FlightHeader, next_seq) == 128 &&
              offsetof(FlightHeader, meta) == 192);
static_assert(sizeof(FlightRecord) == 256 && offsetof(FlightRecord, peer) == 64 &&
              offsetof(FlightRecord, t_end_ns) == 104);

// What an operation is known by when it starts; texts are utf-8 and cut at a character where they are too
// long.
struct FlightStart {
  uint16_t op = 0;
  uint8_t backend = 0;
  std::string_view peer{};
  int64_t version = kFlightNoVersion;
  uint64_t term = 0;
  uint32_t publication = 0;
  int32_t rank = -1;
  uint64_t nbytes = 0;
  std::string_view detail{};
  uint64_t t_start_ns =
      0;  // 0: now; else CLOCK_MONOTONIC of a start that was recorded before and overwritten
};

class FlightRing {
 public:
  // Makes the file (it must not exist; mode 0600), allocates every block of it and maps it. On failure no
  // file is left behind.
  static Result<std::shared_ptr<FlightRing>> create(const std::string& path, uint64_t num_records,
                                                    std::string_view meta);
  // Does not close: a process that ends without close() has not ended in good order, and its file says so.
  ~FlightRing();
  FlightRing(const FlightRing&) = delete;
  FlightRing& operator=(const FlightRing&) = delete;

  // Any thread; lock-free; never fails. Returns the seq that end() takes; kFlightNoSeq once closed.
  uint64_t begin(const FlightStart& start);
  // Any thread. Does nothing if the operation ended before or its record was overwritten; returns whether it
  // wrote.
  bool end(uint64_t seq, FlightState state, int32_t code, uint64_t nbytes_done, std::string_view outcome);
  // Marks the file as closed in good order; later calls do nothing. The memory stays mapped until
  // destruction, since another thread may be inside begin(). Idempotent. In a forked child it leaves the
  // parent's file alone.
  void close();

 private:
  FlightRing(FlightHeader* header, uint64_t num_records);

  FlightHeader* const header_;
  FlightRecord* const records_;
  const uint64_t num_records_;
  const ForkGuard fork_guard_;
  std::atomic<bool> closed_{false};
};

}  // namespace wt
