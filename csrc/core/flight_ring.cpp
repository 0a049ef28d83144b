#include "core/flight_ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace wt {
namespace {

constexpr size_t kWordNbytes = sizeof(uint64_t);
constexpr size_t kRecordWords = sizeof(FlightRecord) / kWordNbytes;
constexpr size_t kEndWord = offsetof(FlightRecord, t_end_ns) / kWordNbytes;

static_assert(std::atomic_ref<uint64_t>::is_always_lock_free);

uint64_t clock_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

uint32_t thread_id() {
  thread_local const auto id = static_cast<uint32_t>(syscall(SYS_gettid));
  return id;
}

constexpr uint64_t stamp_of(uint64_t seq, FlightPhase phase) {
  return (seq + 1) << 2 | static_cast<uint64_t>(phase);
}

constexpr FlightPhase phase_of(uint64_t stamp) {
  return static_cast<FlightPhase>(stamp & 3);
}

// Copies at most `room` bytes, and no broken utf-8 character; returns how many.
size_t copy_text(char* to, size_t room, std::string_view text) {
  size_t nbytes = text.size();
  if (nbytes > room) {
    nbytes = room;
    while (nbytes > 0 && (static_cast<unsigned char>(text[nbytes]) & 0xC0) == 0x80) --nbytes;
  }
  if (nbytes > 0) std::memcpy(to, text.data(), nbytes);
  return nbytes;
}

uint64_t* words_of(FlightRecord& record) {
  return reinterpret_cast<uint64_t*>(&record);
}

// Every word is a release store: none can be seen before the stamp that says "being written", which precedes
// it.
void store_words(FlightRecord& to, const FlightRecord& from, size_t first) {
  uint64_t values[kRecordWords];
  std::memcpy(values, &from, sizeof values);
  for (size_t i = first; i < kRecordWords; ++i) {
    std::atomic_ref<uint64_t>(words_of(to)[i]).store(values[i], std::memory_order_release);
  }
}

void load_words(const FlightRecord& from, FlightRecord& to) {
  uint64_t values[kRecordWords];
  for (size_t i = 0; i < kRecordWords; ++i) {
    values[i] = std::atomic_ref<uint64_t>(words_of(const_cast<FlightRecord&>(from))[i])
                    .load(std::memory_order_relaxed);
  }
  std::memcpy(&to, values, sizeof values);
}

Status make_file(int fd, uint64_t nbytes) {
  int error;
  do {
    error = posix_fallocate(fd, 0, static_cast<off_t>(nbytes));
  } while (error == EINTR);
  return error == 0 ? Status{} : errno_status("posix_fallocate", error);
}

}  // namespace

Result<std::shared_ptr<FlightRing>> FlightRing::create(const std::string& path, uint64_t num_records,
                                                       std::string_view meta) {
  if (num_records == 0 || num_records > kFlightMaxRecords) {
    return Status{ErrCode::INVALID,
                  "a ring has between 1 and " + std::to_string(kFlightMaxRecords) + " records"};
  }
  if (meta.size() > sizeof FlightHeader::meta) {
    return Status{ErrCode::INVALID, "the ring's description is larger than its header page"};
  }
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return errno_status("open", errno);
  const uint64_t nbytes = sizeof(FlightHeader) + num_records * sizeof(FlightRecord);
  Status status = make_file(fd, nbytes);
  void* address = MAP_FAILED;
  if (status.ok()) {
    address = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (address == MAP_FAILED) status = errno_status("mmap", errno);
  }
  ::close(fd);
  if (!status.ok()) {
    unlink(path.c_str());
    return status;
  }
  auto* header = static_cast<FlightHeader*>(address);
  header->format_version = kFlightVersion;
  header->header_nbytes = sizeof(FlightHeader);
  header->record_nbytes = sizeof(FlightRecord);
  header->pid = static_cast<uint32_t>(getpid());
  header->num_records = num_records;
  header->wall_open_ns = clock_ns(CLOCK_REALTIME);
  header->mono_open_ns = clock_ns(CLOCK_MONOTONIC);
  header->meta_nbytes = static_cast<uint32_t>(meta.size());
  if (!meta.empty()) std::memcpy(header->meta, meta.data(), meta.size());
  // The magic last: until then a reader sees no ring.
  uint64_t magic = 0;
  std::memcpy(&magic, "WTRING", 6);
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(header->magic))
      .store(magic, std::memory_order_release);
  return std::shared_ptr<FlightRing>(new FlightRing(header, num_records));
}

FlightRing::FlightRing(FlightHeader* header, uint64_t num_records)
    : header_(header), records_(reinterpret_cast<FlightRecord*>(header + 1)), num_records_(num_records) {
}

FlightRing::~FlightRing() {
  munmap(header_, sizeof(FlightHeader) + num_records_ * sizeof(FlightRecord));
}

uint64_t FlightRing::begin(const FlightStart& start) {
  if (closed_.load(std::memory_order_relaxed)) return kFlightNoSeq;
  const uint64_t seq = std::atomic_ref<uint64_t>(header_->next_seq).fetch_add(1, std::memory_order_relaxed);
  FlightRecord& record = records_[seq % num_records_];
  std::atomic_ref<uint64_t> stamp(record.stamp);

  uint64_t old = stamp.load(std::memory_order_relaxed);
  const bool taken = phase_of(old) == FlightPhase::Beginning || phase_of(old) == FlightPhase::Ending ||
                     old >= stamp_of(seq, FlightPhase::Ended);
  if (taken || !stamp.compare_exchange_strong(old, stamp_of(seq, FlightPhase::Beginning),
                                              std::memory_order_acq_rel, std::memory_order_relaxed)) {
    std::atomic_ref<uint64_t>(header_->num_dropped).fetch_add(1, std::memory_order_relaxed);
    return seq;
  }
  FlightRecord fresh{};
  fresh.t_start_ns = start.t_start_ns != 0 ? start.t_start_ns : clock_ns(CLOCK_MONOTONIC);
  fresh.version = start.version;
  fresh.term = start.term;
  fresh.nbytes_total = start.nbytes;
  fresh.publication = start.publication;
  fresh.rank = start.rank;
  fresh.thread_id = thread_id();
  fresh.op = start.op;
  fresh.backend = start.backend;
  fresh.state = static_cast<uint8_t>(FlightState::Started);
  fresh.peer_nbytes = static_cast<uint8_t>(copy_text(fresh.peer, FlightRecord::kPeerNbytes, start.peer));
  fresh.detail_nbytes =
      static_cast<uint8_t>(copy_text(fresh.text, FlightRecord::kDetailNbytes, start.detail));
  store_words(record, fresh, 1);
  stamp.store(stamp_of(seq, FlightPhase::Started), std::memory_order_release);
  return seq;
}

bool FlightRing::end(uint64_t seq, FlightState state, int32_t code, uint64_t nbytes_done,
                     std::string_view outcome) {
  if (seq == kFlightNoSeq || closed_.load(std::memory_order_relaxed)) return false;
  FlightRecord& record = records_[seq % num_records_];
  std::atomic_ref<uint64_t> stamp(record.stamp);

  uint64_t expected = stamp_of(seq, FlightPhase::Started);
  if (!stamp.compare_exchange_strong(expected, stamp_of(seq, FlightPhase::Ending), std::memory_order_acq_rel,
                                     std::memory_order_relaxed)) {
    return false;
  }
  FlightRecord ended;
  load_words(record, ended);
  ended.t_end_ns = clock_ns(CLOCK_MONOTONIC);
  ended.nbytes_done = nbytes_done;
  ended.code = code;
  ended.state = static_cast<uint8_t>(state);
  const size_t used = ended.detail_nbytes;
  ended.outcome_nbytes =
      static_cast<uint8_t>(copy_text(ended.text + used, FlightRecord::kTextNbytes - used, outcome));
  store_words(record, ended, kEndWord);
  stamp.store(stamp_of(seq, FlightPhase::Ended), std::memory_order_release);
  return true;
}

void FlightRing::close() {
  if (closed_.exchange(true) || fork_guard_.in_child()) return;
  std::atomic_ref<uint64_t>(header_->mono_closed_ns)
      .store(clock_ns(CLOCK_MONOTONIC), std::memory_order_release);
}

}  // namespace wt
