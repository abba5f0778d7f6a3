#include "profile.h"

#include <stdlib.h>
#include <string.h>

#include "../../common/harness/error.h"

struct launch {
    const char *what;
    double flops;
    cudaEvent_t done;
};

struct profile {
    size_t count, room;
    struct launch *launch; // [0] is the beginning
};

struct total {
    const char *what;
    int launches;
    double ms, flops;
};

void profile_add(struct profile *p, const char *what, double flops, cudaStream_t stream)
{
    if (p->count == p->room) {
        p->room = p->room ? 2 * p->room : 1024;
        p->launch = realloc(p->launch, p->room * sizeof *p->launch);
        if (!p->launch) die_input("no memory for a profile");
    }
    struct launch *launch = &p->launch[p->count++];
    *launch = (struct launch){.what = what, .flops = flops};
    CUDA_CHECK(cudaEventCreate(&launch->done));
    CUDA_CHECK(cudaEventRecord(launch->done, stream));
}

struct profile *profile_begin(cudaStream_t stream)
{
    struct profile *p = calloc(1, sizeof *p);
    if (!p) die_input("no memory for a profile");
    profile_add(p, "", 0, stream);
    return p;
}

static int longer(const void *a, const void *b)
{
    const struct total *x = a, *y = b;
    if (x->ms != y->ms) return x->ms < y->ms ? 1 : -1;
    return y->flops > x->flops ? 1 : y->flops < x->flops ? -1 : strcmp(x->what, y->what);
}

void profile_print(struct profile *p, int steps, int with_times)
{
    struct total total[64] = {{0}}, all = {"all", 0, 0, 0};
    int kinds = 0;
    CUDA_CHECK(cudaEventSynchronize(p->launch[p->count - 1].done));
    for (size_t i = 1; i < p->count; i++) {
        float ms = 0;
        int k = 0;
        if (with_times) CUDA_CHECK(cudaEventElapsedTime(&ms, p->launch[i - 1].done, p->launch[i].done));
        while (k < kinds && strcmp(total[k].what, p->launch[i].what) != 0) k++;
        if (k == 64) die_input("a profile has more than 64 kinds of launches");
        if (k == kinds) total[kinds++].what = p->launch[i].what;
        total[k].launches++, all.launches++;
        total[k].ms += ms / steps, all.ms += ms / steps;
        total[k].flops += p->launch[i].flops / steps, all.flops += p->launch[i].flops / steps;
    }
    qsort(total, (size_t)kinds, sizeof *total, longer);
    total[kinds++] = all;
    printf("%-28s %9s %10s%s\n", "a step", "launches", "GFLOP",
           with_times ? "         ms  share  TFLOP/s" : "");
    for (int k = 0; k < kinds; k++) {
        printf("%-28s %9d %10.3f", total[k].what, total[k].launches / steps, total[k].flops / 1e9);
        if (with_times)
            printf(" %10.3f %5.1f%% %8.1f", total[k].ms, 100 * total[k].ms / all.ms,
                   total[k].flops / total[k].ms / 1e9);
        printf("\n");
    }
    for (size_t i = 0; i < p->count; i++) CUDA_CHECK(cudaEventDestroy(p->launch[i].done));
    free(p->launch);
    free(p);
}
