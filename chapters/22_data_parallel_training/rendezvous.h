// How the processes of a group find each other, and how each learns that another has ended: sockets between rank 0, which listens,
// and every other rank. They stay open, so that the system closes them when a process ends, whatever ends it; a machine that
// vanishes closes nothing, so each side also says every second that it is there.
#pragma once

#include <stddef.h>

#include "launcher.h"

#ifdef __cplusplus
extern "C" {
#endif

// What rank 0 has for all others, such as NCCL's unique id.
struct token {
    char bytes[128];
};

// Meets the others; afterwards *token is rank 0's everywhere. Exits with one line if not all have come after COOKBOOK_TIMEOUT
// seconds (120), if the port is taken, or if the others are of another group. Call it once.
void rendezvous_meet(const struct launch *launch, struct token *token);

// From now on a thread watches the others. When one ends without rendezvous_leave, or is silent for seconds, it says which on
// stderr, calls abandon(context), and ends this process with EXIT_CUDA, whatever that does.
void rendezvous_watch(void (*abandon)(void *context), void *context);

// Does not return if the thread has begun to end this process: what abandon() releases must not be taken for a result.
void rendezvous_check(void);

// Says that this process has done its part, and waits, some seconds at most, until those that it is connected to have. The thread ends.
void rendezvous_leave(void);

#ifdef __cplusplus
}
#endif
