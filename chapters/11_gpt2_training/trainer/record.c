#include "record.h"

#include <stdlib.h>

#include "../../../common/harness/error.h"
#include "../../../common/harness/npy.h"
#include "../../../common/harness/results.h"

static int shorter(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void record_speed(const struct options *o, const struct device *device, const struct model *m, double *took,
                  int steps)
{
    enum { WARM_UP = 5 };
    const struct model_config *c = &m->config;
    const int count = steps - WARM_UP;
    took += WARM_UP;
    if (count < 10) die_input("--record: %d steps, expected at least %d", steps, WARM_UP + 10);
    qsort(took, (size_t)count, sizeof *took, shorter);
    const double median = took[count / 2];
    const enum limit which = c->dtype == BF16 ? LIMIT_BF16_TENSOR : LIMIT_FP32;
    const double limit = device_limit(device, which), reached = model_flops(m) / median / 1e12;
    char shape[300], key[600], value[3000], measured[2000],
        share[200] = "\"fraction_of_limit\": null, \"limit\": null";
    snprintf(shape, sizeof shape,
             "layers=%d,heads=%d,channels=%d,length=%d,batch=%d,attention=%d,products=%d", c->layers,
             c->heads, c->channels, c->length, c->batch, c->attention, c->products);
    if (limit > 0)
        snprintf(share, sizeof share,
                 "\"fraction_of_limit\": %.4f, \"limit\": {\"name\": \"%s\", \"value\": %.1f}",
                 reached / limit, which == LIMIT_FP32 ? "fp32" : "bf16 tensor core", limit);
    results_key(key, sizeof key, "11_gpt2_training", NULL, o->step->name, shape,
                o->settings.tf32 ? "tf32" : dtype_name(c->dtype), "tokens/s");
    snprintf(
        value, sizeof value,
        "\"value\": %.6g, \"spread\": [%.6g, %.6g], \"baseline\": null, \"baseline_value\": null, \"ratio\": null, %s, %s",
        c->batch * c->length / median, c->batch * c->length / took[count * 3 / 4],
        c->batch * c->length / took[count / 4], share,
        bench_circumstances(device, o->command, measured, sizeof measured));
    struct results results = {0};
    struct error error;
    results_add(&results, key, value);
    if (!results_merge(&results, o->record, &error)) die_input("--record %s", error.text);
}
