// Native threads as this library starts them.
#pragma once

#include <functional>
#include <thread>

#include "core/result.h"

namespace wt {

enum class Priority { Normal, Batch };  // Batch: an interactive thread that wakes up goes first

// Starts a thread with every signal blocked (signals belong to the Python main thread), named `name` (<= 15 characters).
// NO_MEMORY if the system refuses one.
Result<std::thread> start_thread(const char* name, Priority priority, std::function<void()> body);

}  // namespace wt
