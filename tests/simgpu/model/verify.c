/* verify.c: front/verify.c on a kernel whose registers get each other's places, one pair after the other: it objects where the one
 * still has a value that is read, and nowhere else. */
#include <stdlib.h>
#include <string.h>

#include "../../../tools/simgpu/front/flow.h"
#include "../../../tools/simgpu/front/lower.h"

/* %guarded is written for some lanes only, so the others' value, and its place, must be there from the start. */
static const char PTX[] = ".version 8.0\n.target sm_90a\n.address_size 64\n"
                          ".visible .entry k() {\n"
                          ".reg .b32 %always, %sum, %next, %guarded, %after, %low, %high;\n"
                          ".reg .b64 %wide;\n"
                          ".reg .pred %p;\n"
                          "mov.u32 %always, %tid.x;\n"
                          "mov.u32 %sum, 0;\n"
                          "setp.ne.u32 %p, %always, 0;\n"
                          "again:\n"
                          "add.u32 %next, %always, %sum;\n"
                          "@%p mov.u32 %guarded, %next;\n"
                          "add.u32 %sum, %sum, %next;\n"
                          "setp.lt.u32 %p, %sum, 100;\n"
                          "@%p bra again;\n"
                          "add.u32 %after, %sum, %guarded;\n"
                          "st.global.u32 [0], %after;\n"
                          "mov.u64 %wide, %clock64;\n"
                          "mov.b64 {%low, %high}, %wide;\n"
                          "st.global.v2.u32 [8], {%low, %high};\n"
                          "ret;\n}\n";

static const struct {
    const char *one, *other;
    bool may_share;
} pairs[] = {{"%always", "%sum", false},   {"%always", "%next", false}, {"%sum", "%next", false},
             {"%next", "%guarded", false}, {"%after", "%always", true}, {"%after", "%next", true},
             {"%after", "%sum", true},     {"%low", "%high", false},    {"%low", "%after", true},
             {"%low", "%wide", false},     {"%low", "%p", false}};

static struct reg *named(const struct parsed_function *f, const char *name)
{
    for (u32 k = 0; k < f->reg_count; k++)
        if (strcmp(f->regs[k]->name, name) == 0) return f->regs[k];
    printf("no register %s\n", name);
    exit(1);
}

int main(void)
{
    struct module *m = module_load(&(struct ptx_text){NULL, PTX, sizeof PTX - 1}, 1);
    if (!m || !parse_function_body(m->parser, m->parser->functions[0])) return 1;
    struct parsed_function *f = m->parser->functions[0];
    for (u32 k = 0; k < f->reg_count; k++) f->regs[k]->offset = UNPLACED;
    struct flow g = build_flow(f);
    struct lowering lo = {.p = m->parser, .f = f};
    u32 wrong = 0;
    place_registers(f, &g, &lo.reg_bytes);
    if (!verify_places(&lo, &g)) wrong++, printf("%s\n", f->fn->why);
    for (u32 k = 0; k < sizeof pairs / sizeof *pairs; k++) {
        struct reg *one = named(f, pairs[k].one), *other = named(f, pairs[k].other);
        u32 own = one->offset;
        one->offset = other->offset;
        f->fn->refused = false;
        if (verify_places(&lo, &g) != pairs[k].may_share)
            wrong++, printf("%s in the place of %s\n", one->name, other->name);
        one->offset = own;
    }
    return wrong != 0;
}
