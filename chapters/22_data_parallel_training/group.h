// A group of processes, each with a GPU: NCCL's communicator, the stream that its collectives have for themselves, and the end of
// all when one ends.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "launcher.h"
#include "nccl.h"
#include "rendezvous.h"

#ifdef __cplusplus
extern "C" {
#endif

struct group {
    int rank, ranks;
    const struct nccl *nccl;
    ncclComm_t comm;
    cudaStream_t stream; // before all others where both have blocks to run
};

// Before anything else is asked of CUDA: chooses this process's GPU. What ranks other than 0 print to stdout is dropped.
struct launch group_choose_gpu(void);

// Meets the other ranks. Exits with one line if that fails; call it once.
struct group *group_join(const struct launch *launch);

// All that has been launched is waited for; this rank may then end without taking the others with it. No graph may have a collective of
// the group any more: NCCL waits until it is destroyed.
void group_leave(struct group *group);

// After a stream has been waited for: exits if what it computed may be wrong, since another rank has ended or the network failed.
void group_check(struct group *group);

// Whether `number` is the same on all ranks.
bool group_agrees(struct group *group, uint64_t number);

// Exits on an error of NCCL, naming the call; if another rank's end is the reason, with a line that names that. Where this process
// has begun to end for that reason, its communicator is being aborted, and nothing calls NCCL any more.
void nccl_check(struct group *group, int result, const char *call, const char *file, int line);
#define NCCL_CHECK(group, call) \
    (rendezvous_check(), nccl_check((group), (group)->nccl->call, "nccl" #call, __FILE__, __LINE__))

#ifdef __cplusplus
}
#endif
