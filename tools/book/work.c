// Prints what a chapter's operations are counted as, for the book's rooflines: FLOP, and the bytes of every tensor once, which is the
// least that has to move. Compiled with a chapter's main.c, whose launchers are named there and never called:
//
//      gcc -DMAIN='"chapters/05_cp_async_pipeline/main.c"' …; work OPERATION TYPE SHAPE …     "-": the only operation
//
// A line for each three arguments: the FLOP and the bytes, or "- BYTES" where the operation counts no FLOP.
#include "../../common/harness/chapter.h"

#undef CHAPTER
#define CHAPTER(operations)                                \
    static const struct operation *const all = operations; \
    static const int all_count = sizeof(operations) / sizeof *(operations);

#include MAIN

#include <stdio.h>
#include <string.h>

static int64_t value_of(const struct operation *op, const char **text, const int64_t *dim, int64_t size)
{
    const char *names[SHAPE_MAX_DIMS + 1] = {0};
    int64_t values[SHAPE_MAX_DIMS + 1], value;
    struct error error;
    int count = 0;
    for (; op->dims[count]; count++) names[count] = op->dims[count], values[count] = dim[count];
    names[count] = "size", values[count] = size;
    if (!(*text = shape_evaluate(*text, names, values, &value, &error))) {
        fprintf(stderr, "work: %s\n", error.text);
        exit(1);
    }
    return value;
}

// The bytes of all the operation's arrays.
static int64_t tensor_bytes(const struct operation *op, enum dtype type, const int64_t *dim)
{
    int64_t sum = 0;
    for (const struct tensor *t = op->tensors; t->name; t++) {
        // --bench leaves the optional ones out.
        if (t->role == PARAM || t->role == IN_OPTIONAL) continue;
        int64_t bytes = (int64_t)dtype_bytes(t->dtype ? t->dtype : type);
        for (const char *text = t->shape; *text; text += *text == ',') bytes *= value_of(op, &text, dim, 0);
        sum += bytes * (t->role == INOUT ? 2 : 1);
    }
    return sum;
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 2 < argc; i += 3) {
        const struct operation *op = NULL;
        for (int o = 0; o < all_count; o++)
            if (strcmp(all[o].name ? all[o].name : "-", argv[i]) == 0) op = &all[o];
        enum dtype type = RUN_TYPE;
        for (int t = 0; op && op->types[t]; t++)
            if (strcmp(dtype_name(op->types[t]), argv[i + 1]) == 0) type = op->types[t];
        int64_t dim[SHAPE_MAX_DIMS];
        struct error error = {.text = "no such operation or type"};
        const int zeros[SHAPE_MAX_DIMS] = {0};
        if (!type || !shape_read(argv[i + 2], op->dims, zeros, dim, &error)) {
            fprintf(stderr, "work: %s %s %s: %s\n", argv[i], argv[i + 1], argv[i + 2], error.text);
            return 1;
        }
        const char *flops = op->flops;
        if (flops)
            printf("%lld ", (long long)value_of(op, &flops, dim, (int64_t)dtype_bytes(type)));
        else
            printf("- ");
        printf("%lld\n", (long long)tensor_bytes(op, type, dim));
    }
    return 0;
}
