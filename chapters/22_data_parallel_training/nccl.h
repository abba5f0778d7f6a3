// NCCL, as far as this chapter calls it: names, numbers and arguments are those of NCCL 2's nccl.h. libnccl.so.2 is opened when it is
// asked for, so that the chapter is built where no NCCL is, and runs with the simulated GPU's.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
enum { ncclSuccess = 0 };                                    // ncclResult_t
enum { ncclUint64 = 5, ncclFloat32 = 7, ncclBfloat16 = 9 };  // ncclDataType_t
enum { ncclSum = 0, ncclMax = 2, ncclMin = 3, ncclAvg = 4 }; // ncclRedOp_t

// Its functions, by their names without the prefix. All return an ncclResult_t but for the two that return text.
struct nccl {
    int (*GetUniqueId)(ncclUniqueId *id);
    int (*CommInitRank)(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank);
    int (*CommDestroy)(ncclComm_t comm);
    int (*CommAbort)(ncclComm_t comm);
    int (*CommGetAsyncError)(ncclComm_t comm, int *error);
    int (*AllReduce)(const void *send, void *recv, size_t count, int type, int op, ncclComm_t comm,
                     cudaStream_t stream);
    int (*Reduce)(const void *send, void *recv, size_t count, int type, int op, int root, ncclComm_t comm,
                  cudaStream_t stream);
    int (*ReduceScatter)(const void *send, void *recv, size_t count_of_one, int type, int op, ncclComm_t comm,
                         cudaStream_t stream);
    int (*AllGather)(const void *send, void *recv, size_t count_of_one, int type, ncclComm_t comm,
                     cudaStream_t stream);
    int (*Broadcast)(const void *send, void *recv, size_t count, int type, int root, ncclComm_t comm,
                     cudaStream_t stream);
    int (*GroupStart)(void);
    int (*GroupEnd)(void);
    const char *(*GetErrorString)(int result);
    const char *(*GetLastError)(ncclComm_t comm);
};

// The library, opened at the first call: the loader's libnccl.so.2, else the one in the folder that NCCL_LIB names. Exits with
// one line that says what to install where there is none.
const struct nccl *nccl_open(void);

#ifdef __cplusplus
}
#endif
