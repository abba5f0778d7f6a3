/* options.c: what the simgpu command passes to its libraries, through the environment. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../sim.h"

struct options options = {.sms = 132, .profile_lines = 20, .memory = 16ull << 30, .max_idle = 1 << 30};

/* The variable's value as a whole number, `fallback` when it is not set or no number: simgpu has checked its
 * arguments before it sets them. */
static u64 number(const char *name, u64 fallback)
{
    const char *text = getenv(name);
    if (!text || !*text) return fallback;
    char *end;
    errno = 0;
    u64 value = strtoull(text, &end, 10);
    if (errno || *end) {
        fprintf(stderr, "simgpu: %s is '%s', expected a whole number\n", name, text);
        exit(2);
    }
    return value;
}

/* Before anything else in the library, and before the program's own constructors register its kernels. */
__attribute__((constructor(101))) static void read_environment(void)
{
    options.threads = (u32)number("SIMGPU_THREADS", options.threads);
    options.seed = number("SIMGPU_SEED", options.seed);
    options.sms = (u32)number("SIMGPU_SMS", options.sms);
    options.profile_lines = (u32)number("SIMGPU_PROFILE_LINES", options.profile_lines);
    options.profile = number("SIMGPU_PROFILE", 0) != 0;
    options.faults = getenv("SIMGPU_FAULTS") ? (int)number("SIMGPU_FAULTS", 0) : -1;
    options.faults_report = number("SIMGPU_FAULTS_REPORT", 0) != 0;
    options.explain = number("SIMGPU_EXPLAIN", 0) != 0;
    options.exact_mma = number("SIMGPU_EXACT_MMA", 0) != 0;
    options.verbose = number("SIMGPU_VERBOSE", 0) != 0;
    options.max_instructions = number("SIMGPU_MAX_INSTRUCTIONS", 0);
    options.max_idle = number("SIMGPU_MAX_IDLE", options.max_idle);
    options.memory = number("SIMGPU_MEMORY", options.memory);
    options.json = getenv("SIMGPU_JSON");
    options.dump = getenv("SIMGPU_DUMP");
}
