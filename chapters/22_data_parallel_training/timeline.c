#include "timeline.h"

#include "../../common/harness/error.h"

struct moment {
    enum mark mark;
    size_t bytes;
    cudaEvent_t event;
};

struct timeline {
    size_t count, room;
    struct moment *moment;
};

void timeline_mark(struct timeline **timeline, enum mark mark, size_t bytes, cudaStream_t stream)
{
    struct timeline *t = *timeline;
    if (!t) t = *timeline = calloc(1, sizeof *t);
    if (t && t->count == t->room) {
        t->room = t->room ? 2 * t->room : 256;
        t->moment = realloc(t->moment, t->room * sizeof *t->moment);
    }
    if (!t || !t->moment) die_input("no memory for a timeline");
    struct moment *moment = &t->moment[t->count++];
    *moment = (struct moment){.mark = mark, .bytes = bytes};
    CUDA_CHECK(cudaEventCreate(&moment->event));
    CUDA_CHECK(cudaEventRecord(moment->event, stream));
}

// Milliseconds between all moments of one kind and the next one of the other.
static double between(const struct timeline *t, enum mark begin, enum mark end)
{
    double sum = 0;
    const struct moment *began = NULL;
    for (const struct moment *moment = t->moment; moment < t->moment + t->count; moment++) {
        float ms;
        if (moment->mark == begin) began = moment;
        if (moment->mark != end || !began) continue;
        CUDA_CHECK(cudaEventElapsedTime(&ms, began->event, moment->event));
        sum += ms;
    }
    return sum;
}

void timeline_print(struct timeline *t, int steps, bool with_times)
{
    size_t bytes = 0;
    int exchanges = 0;
    if (!t) return;
    CUDA_CHECK(cudaDeviceSynchronize());
    for (const struct moment *moment = t->moment; moment < t->moment + t->count; moment++) {
        bytes += moment->bytes;
        exchanges += moment->mark == EXCHANGE_ENDS;
    }
    printf("exchanged in a step: %.3f MB at %d times", (double)bytes / steps / 1e6, exchanges / steps);
    if (with_times) {
        const double all = between(t, EXCHANGE_BEGINS, EXCHANGE_ENDS) / steps,
                     waited = between(t, WAIT_BEGINS, WAIT_ENDS) / steps;
        printf(", in %.3f ms; %.3f ms of them waited for, %.0f%% hidden", all, waited,
               100 * (1 - waited / all));
    }
    printf("\n");
    for (size_t i = 0; i < t->count; i++) CUDA_CHECK(cudaEventDestroy(t->moment[i].event));
    free(t->moment);
    free(t);
}
