#include "nccl.h"

#include <limits.h>

#include "../../common/harness/error.h"
#include "../../common/harness/library.h"

static void *open_library(void)
{
    char path[PATH_MAX];
    const char *folder = getenv("NCCL_LIB");
    void *library = dlopen("libnccl.so.2", RTLD_NOW);
    if (library || !folder || !*folder) return library;
    snprintf(path, sizeof path, "%s/libnccl.so.2", folder);
    return dlopen(path, RTLD_NOW);
}

const struct nccl *nccl_open(void)
{
    static struct nccl nccl;
    if (nccl.GetUniqueId) return &nccl;
    void *library = open_library();
    if (!library)
        die_input("NCCL: %s; install it with: .venv/bin/python3 -m pip install nvidia-nccl-cu13, or Debian's "
                  "libnccl2, or name the folder of a libnccl.so.2 in NCCL_LIB",
                  dlerror());
    const struct {
        const char *name;
        void *function;
    } functions[] = {
        {"ncclCommInitRank", &nccl.CommInitRank},   {"ncclCommDestroy", &nccl.CommDestroy},
        {"ncclCommAbort", &nccl.CommAbort},         {"ncclCommGetAsyncError", &nccl.CommGetAsyncError},
        {"ncclAllReduce", &nccl.AllReduce},         {"ncclReduce", &nccl.Reduce},
        {"ncclReduceScatter", &nccl.ReduceScatter}, {"ncclAllGather", &nccl.AllGather},
        {"ncclBroadcast", &nccl.Broadcast},         {"ncclGroupStart", &nccl.GroupStart},
        {"ncclGroupEnd", &nccl.GroupEnd},           {"ncclGetErrorString", &nccl.GetErrorString},
        {"ncclGetLastError", &nccl.GetLastError},   {"ncclGetUniqueId", &nccl.GetUniqueId},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!library_find(library, functions[i].name, functions[i].function)) exit(EXIT_BAD_INPUT);
    return &nccl;
}
