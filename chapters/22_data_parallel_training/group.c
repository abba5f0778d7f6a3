#include "group.h"

#include <unistd.h>

#include "../../common/harness/bench.h"
#include "../../common/harness/error.h"

// How long another rank's end may take to be known by name: longer than rendezvous.c's silence.
enum { NAMED_S = 8 };

struct launch group_choose_gpu(void)
{
    const struct launch launch = launch_read();
    int gpus = 0;
    setvbuf(stderr, NULL, _IOLBF, 0); // so that lines of several processes stay whole
    if (launch.rank > 0 && !freopen("/dev/null", "w", stdout)) die_input("/dev/null: %s", strerror(errno));
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) return launch;
    // A launcher may show each process one GPU, its own; the simulated GPU does.
    if (gpus > 1 && launch.local_rank >= gpus)
        die_input("rank %d is number %d on its machine, from 0 on, which has %d GPUs", launch.rank,
                  launch.local_rank, gpus);
    CUDA_CHECK(cudaSetDevice(launch.local_rank % gpus));
    return launch;
}

// The rendezvous' thread calls it, while this process may wait for a collective that will never be done.
static void abandon(void *context)
{
    struct group *group = context;
    if (group->comm) group->nccl->CommAbort(group->comm);
}

struct group *group_join(const struct launch *launch)
{
    struct group *group = calloc(1, sizeof *group);
    struct token token;
    ncclUniqueId id = {0};
    int least, greatest;
    device_open(); // without a GPU it says what would run this
    if (!group) die_input("no memory for a group");
    group->rank = launch->rank, group->ranks = launch->ranks;
    group->nccl = nccl_open();
    if (group->rank == 0) NCCL_CHECK(group, GetUniqueId(&id));
    memcpy(&token, &id, sizeof token);
    _Static_assert(sizeof token == sizeof id, "the token is NCCL's unique id");
    if (group->ranks > 1) {
        rendezvous_meet(launch, &token);
        rendezvous_watch(abandon, group);
    }
    memcpy(&id, &token, sizeof id);
    NCCL_CHECK(group, CommInitRank(&group->comm, group->ranks, id, group->rank));
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&group->stream, cudaStreamNonBlocking, greatest));
    return group;
}

void group_leave(struct group *group)
{
    CUDA_CHECK(cudaDeviceSynchronize());
    group_check(group);
    rendezvous_leave();
    NCCL_CHECK(group, CommDestroy(group->comm));
    group->comm = NULL;
}

void nccl_check(struct group *group, int result, const char *call, const char *file, int line)
{
    if (result == ncclSuccess) return;
    if (group->ranks > 1) sleep(NAMED_S); // The rendezvous' thread ends this process if it knows better.
    fflush(stdout);
    fprintf(stderr, "%s:%d: rank %d of %d: %s: %s: %s\n", file, line, group->rank, group->ranks, call,
            group->nccl->GetErrorString(result), group->nccl->GetLastError(group->comm));
    _exit(EXIT_CUDA);
}

void group_check(struct group *group)
{
    int error = ncclSuccess;
    NCCL_CHECK(group, CommGetAsyncError(group->comm, &error));
    nccl_check(group, error, "a collective", __FILE__, __LINE__);
}

bool group_agrees(struct group *group, uint64_t number)
{
    uint64_t *on_device, least_most[2] = {number, number};
    CUDA_CHECK(cudaMalloc((void **)&on_device, sizeof least_most));
    CUDA_CHECK(cudaMemcpy(on_device, least_most, sizeof least_most, cudaMemcpyHostToDevice));
    NCCL_CHECK(group, GroupStart());
    NCCL_CHECK(group, AllReduce(on_device, on_device, 1, ncclUint64, ncclMin, group->comm, group->stream));
    NCCL_CHECK(group,
               AllReduce(on_device + 1, on_device + 1, 1, ncclUint64, ncclMax, group->comm, group->stream));
    NCCL_CHECK(group, GroupEnd());
    CUDA_CHECK(cudaStreamSynchronize(group->stream));
    group_check(group);
    CUDA_CHECK(cudaMemcpy(least_most, on_device, sizeof least_most, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaFree(on_device));
    return least_most[0] == least_most[1];
}
