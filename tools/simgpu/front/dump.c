/* dump.c: a function as it is executed, for simgpu --dump: the PTX of each instruction with the places of its registers (front/place.c),
 * what it writes before what it reads, and for a branch where it goes and where its lanes meet again. */
#include <stdlib.h>
#include <string.h>

#include "../report/report.h"
#include "flow.h"
#include "lower.h"

/* "r7": the eighth of the places that its width has, p for predicates, r for up to 32 bits, d for 64, q for 128; "#": the constant that a
 * mov put there is read instead. */
struct places {
    const struct function *fn;
    char text[2048];
    size_t used;
    bool reads;
};
static void add_place(struct reg *r, void *context)
{
    struct places *l = context;
    char place[16] = "#";
    for (u32 k = 0; (!l->reads || !r->value) && k < l->fn->range_count; k++) {
        const struct register_range *range = &l->fn->ranges[k];
        u32 bytes = range->lane_bytes ? range->lane_bytes * LANES : 4,
            at = (r->offset - range->offset) / bytes;
        if (r->offset >= range->offset && at < range->count)
            snprintf(place, sizeof place, "%c%u", "prd?q"[range->lane_bytes / 4], at);
    }
    if (l->used < sizeof l->text)
        l->used += (size_t)snprintf(l->text + l->used, sizeof l->text - l->used, " %s", place);
}

static void print_function(const struct function *fn)
{
    const struct source_line *shown = NULL;
    fprintf(stderr, "simgpu: %s: %u bytes of registers a warp\n", readable_name(fn->name), fn->reg_bytes);
    for (u32 k = 0; k < fn->code_count; k++) {
        const struct inst *in = &fn->code[k];
        const struct ptx_inst *p = fn->ptx[k];
        const struct source_line *line = &fn->lines[k];
        struct places written = {.fn = fn}, read = {.fn = fn, .reads = true};
        if (line->file && (!shown || shown->line != line->line || strcmp(shown->file, line->file) != 0))
            fprintf(stderr, "%s:%u\n", line->file, line->line), shown = line;
        if (in->exec == lower_join) {
            fprintf(stderr, "%6u  (lanes meet)\n", k);
            continue;
        }
        if (in->exec == lower_unset) {
            fprintf(stderr, "%6u  (nothing has written %s)\n", k, ((const struct reg *)in->data)->name);
            continue;
        }
        visit_definitions(p, add_place, &written);
        visit_uses(p, add_place, &read);
        int width = fprintf(stderr, "%6u  %s%s%s%s", k, p->guard ? "@" : "", p->guard_negated ? "!" : "",
                            p->guard ? p->guard->name : "", p->guard ? " " : "");
        fprintf(stderr, "%-*s %s <-%s", 56 - width, p->text, written.text, read.text);
        if (in->target >= 0) fprintf(stderr, "  to %d", in->target);
        if (in->reconverge >= 0) fprintf(stderr, ", lanes meet at %d", in->reconverge);
        fprintf(stderr, "\n");
    }
}

static bool printed;

static void say_if_none(void)
{
    if (!printed)
        fprintf(stderr,
                "simgpu: --dump %s: no kernel that ran has a name that holds it; --verbose names them\n",
                options.dump);
}

void dump_function(const struct function *fn)
{
    static bool registered;
    if (!options.dump) return;
    if (!registered) atexit(say_if_none);
    registered = true;
    if (!strstr(fn->name, options.dump)) return;
    printed = true;
    print_function(fn);
}
