/* counters.c: what a profiler would count, by source line: a table when the program ends, and JSON. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../exec/memory.h"
#include "../front/ptx.h"
#include "report.h"

/* ---- Counting ------------------------------------------------------------------------------------------------------------ */

/* Shared memory: 32 banks of 4 bytes, each delivering one word a pass. A warp's 8-byte accesses are served in two halves,
 * 16-byte accesses in four quarters, as the hardware's documentation describes; within one group, lanes that want the same
 * word share it. The ideal is what the distinct bytes need at 128 a pass. */
u32 shared_passes(u32 mask, const u64 address[LANES], u32 bytes, u32 *ideal)
{
    u32 group = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8, passes = 0, words_each = bytes <= 4 ? 1 : bytes / 4;
    *ideal = 0;
    for (u32 first = 0; first < LANES; first += group) {
        u32 words[32][LANES], per_bank[32] = {0}, count = 0, most = 0; /* different ones, by bank */
        for (u32 i = first; i < first + group; i++) {
            if (!(mask >> i & 1)) continue;
            for (u32 k = 0; k < words_each; k++) {
                u32 word = (u32)(address[i] >> 2) + k, bank = word % 32, n = 0;
                while (n < per_bank[bank] && words[bank][n] != word) n++;
                if (n < per_bank[bank]) continue;
                words[bank][n] = word;
                per_bank[bank]++;
                count++;
                if (n >= most) most = n + 1;
            }
        }
        passes += most;
        *ideal += (count + 31) / 32;
    }
    return passes;
}

void count_shared(struct warp *w, const struct inst *in, u32 mask, const u64 address[LANES], u32 bytes)
{
    struct counter *c = &w->counters[in - w->frame->fn->code];
    u32 ideal;
    c->shared_wavefronts += shared_passes(mask, address, bytes, &ideal);
    c->shared_ideal += ideal;
}

/* Global memory moves in sectors of 32 bytes. The ideal is what the distinct bytes that the warp asks for would fill. */
void count_global(struct warp *w, const struct inst *in, u32 mask, const u64 address[LANES], u32 bytes)
{
    struct counter *c = &w->counters[in - w->frame->fn->code];
    u64 sector[LANES * 2], start[LANES];
    u32 sectors = 0, distinct = 0;
    for (u32 i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        bool again = false;
        for (u32 s = 0; s < distinct && !again; s++) again = start[s] == address[i];
        if (!again) start[distinct++] = address[i];
        for (u64 at = address[i] / 32; at <= (address[i] + bytes - 1) / 32; at++) {
            again = false;
            for (u32 s = 0; s < sectors && !again; s++) again = sector[s] == at;
            if (!again) sector[sectors++] = at;
        }
    }
    c->sectors += sectors;
    c->sectors_ideal += (distinct * bytes + 31) / 32;
}

/* ---- Collecting ------------------------------------------------------------------------------------------------------------ */

/* What a kernel was launched for, by step: a chapter's step may launch another one's kernel. */
struct launched {
    struct launched *next;
    const struct function *kernel;
    const char *step; /* simgpu_step's, or NULL; "": it is left out */
    u64 launches, instructions;
    bool open; /* launched since the functions' counters were last collected */
    struct line_total *lines;
    u32 line_count;
    struct op_total *ops;
    u32 op_count;
};
static struct launched *all_kernels;
struct step_name {
    struct step_name *next;
    char text[];
};
static struct step_name *step_names;
static const char *step;    /* of what is launched now */
static const char *running; /* of the launch that runs: with a seed it may have been launched before */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void report(void);
static void collect_all(void);

const char *counters_step(void)
{
    pthread_mutex_lock(&lock);
    const char *now = step;
    pthread_mutex_unlock(&lock);
    return now;
}

void counters_prepare(const struct launch *l, u32 workers)
{
    const struct module *m = l->kernel->module;
    pthread_mutex_lock(&lock);
    if (running != l->step) collect_all();
    running = l->step;
    pthread_mutex_unlock(&lock);
    for (u32 i = 0; i < m->function_count; i++) {
        struct function *fn = m->functions[i];
        if (fn != l->kernel && fn->is_kernel) continue;
        if (!fn->counters) fn->counters = calloc(MAX_WORKERS, sizeof *fn->counters);
        if (!fn->counters) abort();
        for (u32 k = 0; k < workers; k++)
            if (!fn->counters[k] && !(fn->counters[k] = calloc(fn->code_count + 1, sizeof **fn->counters)))
                abort();
    }
}

/* The counters of all instructions that one source line became. */
struct line_total {
    const char *file;
    u32 line;
    struct counter sum;
};

/* What of a kernel's instructions have one name, its modifiers included, wherever in the source they are. */
struct op_total {
    char *name; /* "bar.sync" */
    u64 warps;
};

static void add(struct counter *to, const struct counter *from)
{
    u64 *t = (u64 *)to;
    const u64 *f = (const u64 *)from;
    for (size_t i = 0; i < sizeof *to / sizeof *t; i++) t[i] += f[i];
}

static int by_place(const void *a, const void *b)
{
    const struct line_total *x = a, *y = b;
    int order = strcmp(x->file ? x->file : "", y->file ? y->file : "");
    return order ? order : x->line < y->line ? -1 : x->line > y->line;
}
static int by_weight(const void *a, const void *b)
{
    const struct line_total *x = a, *y = b;
    return x->sum.warps < y->sum.warps ? 1 : x->sum.warps > y->sum.warps ? -1 : by_place(a, b);
}

static void add_op(struct launched *k, const struct ptx_inst *p, u64 warps)
{
    char name[128];
    size_t length = (size_t)snprintf(name, sizeof name, "%s", p->opcode);
    for (u32 i = 0; i < p->mod_count && length < sizeof name; i++)
        length += (size_t)snprintf(name + length, sizeof name - length, ".%s", p->mod[i]);
    u32 at = 0;
    while (at < k->op_count && strcmp(k->ops[at].name, name) != 0) at++;
    if (at == k->op_count) {
        if (!(k->ops = realloc(k->ops, (at + 1) * sizeof *k->ops))) abort();
        if (!(k->ops[at].name = strdup(name))) abort();
        k->ops[at].warps = 0;
        k->op_count++;
    }
    k->ops[at].warps += warps;
}

static u32 collect_function(struct launched *k, const struct function *fn)
{
    struct line_total *lines = k->lines;
    u32 n = k->line_count;
    for (u32 i = 0; i < fn->code_count; i++) {
        struct counter sum = {0};
        for (u32 w = 0; w < MAX_WORKERS; w++)
            if (fn->counters && fn->counters[w]) add(&sum, &fn->counters[w][i]);
        if (!sum.warps) continue;
        add_op(k, fn->ptx[i], sum.warps);
        u32 at = 0;
        while (at < n && (lines[at].line != fn->lines[i].line || lines[at].file != fn->lines[i].file)) at++;
        if (at == n) lines[n++] = (struct line_total){.file = fn->lines[i].file, .line = fn->lines[i].line};
        add(&lines[at].sum, &sum);
    }
    return n;
}

static const char *base_name(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path ? path : "(no -lineinfo)";
}

/* The source line's own text, trimmed, or "" when the file cannot be read. */
static const char *source_text(const char *path, u32 line)
{
    static char text[512];
    FILE *f = path ? fopen(path, "r") : NULL;
    text[0] = 0;
    if (!f) return text;
    u32 at = 0;
    while (at < line && fgets(text, sizeof text, f)) at += strchr(text, '\n') != NULL;
    fclose(f);
    if (at < line) text[0] = 0;
    text[strcspn(text, "\n")] = 0;
    const char *from = text + strspn(text, " \t");
    return from;
}

static void print_ratio(FILE *out, u64 actual, u64 ideal)
{
    if (!actual)
        fprintf(out, " %21s", "");
    else
        fprintf(out, " %8llu/%-8llu%3.0fx", (unsigned long long)actual, (unsigned long long)ideal,
                ideal ? (double)actual / (double)ideal : 0);
}

static void print_kernel(const struct launched *k, struct line_total *lines, u32 n)
{
    fprintf(stderr, "\nsimgpu: %s%skernel %s: %llu launch%s, %llu warp instructions\n",
            k->step ? k->step : "", k->step ? ": " : "", readable_name(k->kernel->name),
            (unsigned long long)k->launches, k->launches == 1 ? "" : "es",
            (unsigned long long)k->instructions);
    struct counter all = {0};
    for (u32 i = 0; i < n; i++) add(&all, &lines[i].sum);
    qsort(lines, n, sizeof *lines, by_weight);
    u32 shown = n < options.profile_lines ? n : options.profile_lines;
    qsort(lines, shown, sizeof *lines, by_place);
    int width = 29;
    for (u32 i = 0; i < shown; i++) {
        int length = snprintf(NULL, 0, "%s:%u", base_name(lines[i].file), lines[i].line);
        if (length > width) width = length;
    }
    fprintf(stderr, "%-*s %10s %5s %21s %21s %5s\n", width, "", "warp", "lanes", "global sectors",
            "shared wavefronts", "");
    fprintf(stderr, "%-*s %10s %5s %21s %21s %5s\n", width, "line", "instrs", "on", "actual/ideal",
            "actual/ideal", "split");
    for (u32 i = 0; i <= shown; i++) {
        const struct counter *c = i < shown ? &lines[i].sum : &all;
        int length = i < shown ? fprintf(stderr, "%s:%u", base_name(lines[i].file), lines[i].line)
                               : fprintf(stderr, "all%s", shown < n ? " (more lines: --profile=LINES)" : "");
        fprintf(stderr, "%*s %10llu %5.1f", width > length ? width - length : 0, "",
                (unsigned long long)c->warps, c->warps ? (double)c->lanes / (double)c->warps : 0);
        print_ratio(stderr, c->sectors, c->sectors_ideal);
        print_ratio(stderr, c->shared_wavefronts, c->shared_ideal);
        if (c->diverged)
            fprintf(stderr, " %5llu", (unsigned long long)c->diverged);
        else
            fprintf(stderr, " %5s", "");
        if (c->flops) fprintf(stderr, " %.4g MFLOP tensor", (double)c->flops * 1e-6);
        if (c->copied) fprintf(stderr, " %.4g KiB copied", (double)c->copied / 1024);
        fprintf(stderr, i < shown ? "  %.60s\n" : "\n", source_text(lines[i].file, lines[i].line));
    }
}

static void json_text(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') fputc('\\', f);
        if ((u8)*s >= 32) fputc(*s, f);
    }
    fputc('"', f);
}

static void json_kernel(FILE *f, const struct launched *k, struct line_total *lines, u32 n, bool first)
{
    fprintf(f, "%s\n  {\"kernel\": ", first ? "" : ",");
    json_text(f, readable_name(k->kernel->name));
    if (k->step) {
        fprintf(f, ", \"step\": ");
        json_text(f, k->step);
    }
    fprintf(f, ", \"launches\": %llu, \"instructions\": %llu, \"lines\": [", (unsigned long long)k->launches,
            (unsigned long long)k->instructions);
    qsort(lines, n, sizeof *lines, by_place);
    for (u32 i = 0; i < n; i++) {
        const struct counter *c = &lines[i].sum;
        fprintf(f, "%s\n    {\"file\": ", i ? "," : "");
        json_text(f, lines[i].file ? lines[i].file : "");
        fprintf(f, ", \"line\": %u, \"text\": ", lines[i].line);
        json_text(f, source_text(lines[i].file, lines[i].line));
        fprintf(f, ", \"warp_instructions\": %llu, \"active_lanes\": %llu, \"divergent_branches\": %llu, ",
                (unsigned long long)c->warps, (unsigned long long)c->lanes, (unsigned long long)c->diverged);
        fprintf(f, "\"global_sectors\": %llu, \"global_sectors_ideal\": %llu, ",
                (unsigned long long)c->sectors, (unsigned long long)c->sectors_ideal);
        fprintf(f,
                "\"shared_wavefronts\": %llu, \"shared_wavefronts_ideal\": %llu, \"tensor_flops\": %llu, "
                "\"copied_bytes\": %llu}",
                (unsigned long long)c->shared_wavefronts, (unsigned long long)c->shared_ideal,
                (unsigned long long)c->flops, (unsigned long long)c->copied);
    }
    fprintf(f, "], \"ops\": {");
    for (u32 i = 0; i < k->op_count; i++)
        fprintf(f, "%s\n    \"%s\": %llu", i ? "," : "", k->ops[i].name, (unsigned long long)k->ops[i].warps);
    fprintf(f, "}}");
}

/* A kernel's own lines, and those of the device functions of its module that it may have called. */
static void collect(struct launched *k)
{
    const struct module *m = k->kernel->module;
    u32 room = k->kernel->code_count;
    for (u32 i = 0; i < m->function_count; i++)
        room += m->functions[i]->is_kernel ? 0 : m->functions[i]->code_count;
    if (!k->lines && !(k->lines = calloc(room + 1, sizeof *k->lines))) abort();
    k->line_count = collect_function(k, k->kernel);
    for (u32 i = 0; i < m->function_count && k->kernel->calls; i++)
        if (!m->functions[i]->is_kernel) k->line_count = collect_function(k, m->functions[i]);
}

static void clear(const struct module *m)
{
    for (u32 i = 0; i < m->function_count; i++)
        for (u32 w = 0; w < MAX_WORKERS && m->functions[i]->counters; w++)
            if (m->functions[i]->counters[w])
                memset(m->functions[i]->counters[w], 0,
                       (m->functions[i]->code_count + 1) * sizeof **m->functions[i]->counters);
}

static void collect_all(void)
{
    for (struct launched *k = all_kernels; k; k = k->next)
        if (k->open) collect(k);
    for (struct launched *k = all_kernels; k; k = k->next) {
        if (k->open) clear(k->kernel->module);
        k->open = false;
    }
}

void counters_launched(const struct launch *l, u64 instructions)
{
    pthread_mutex_lock(&lock);
    static bool registered;
    if (!registered) atexit(report);
    registered = true;
    struct launched **at = &all_kernels;
    while (*at && ((*at)->kernel != l->kernel || (*at)->step != l->step)) at = &(*at)->next;
    if (!*at && (*at = calloc(1, sizeof **at))) (*at)->kernel = l->kernel, (*at)->step = l->step;
    if (*at) {
        (*at)->open = true;
        (*at)->launches++;
        (*at)->instructions += instructions;
    }
    if (l->kernel->calls) collect_all(); /* the next kernel may call the same functions */
    pthread_mutex_unlock(&lock);
}

/* The simulated GPU's own call, for a program to find with dlsym(RTLD_DEFAULT, "simgpu_step"): what is launched from now on
 * is counted under this name, under none (NULL) or not at all (""). */
void simgpu_step(const char *name)
{
    pthread_mutex_lock(&lock);
    struct step_name *n = step_names;
    while (name && n && strcmp(n->text, name) != 0) n = n->next;
    if (name && !n) {
        n = malloc(sizeof *n + strlen(name) + 1);
        if (!n) abort();
        strcpy(n->text, name);
        n->next = step_names;
        step_names = n;
    }
    step = name ? n->text : NULL;
    pthread_mutex_unlock(&lock);
}

static void report(void)
{
    char temporary[4096];
    FILE *json = NULL;
    if (options.json) {
        snprintf(temporary, sizeof temporary, "%s.part", options.json);
        json = fopen(temporary, "w");
        if (!json)
            fprintf(stderr, "simgpu: cannot write %s\n", temporary);
        else
            fprintf(json, "[");
    }
    fflush(stdout);
    collect_all();
    bool first = true;
    for (const struct launched *k = all_kernels; k; k = k->next) {
        if (k->step && !*k->step) continue;
        if (json) json_kernel(json, k, k->lines, k->line_count, first);
        first = false;
        if (options.profile) print_kernel(k, k->lines, k->line_count);
    }
    if (json) {
        fprintf(json, "\n]\n");
        if (fclose(json) || rename(temporary, options.json))
            fprintf(stderr, "simgpu: cannot write %s\n", options.json);
    }
}
