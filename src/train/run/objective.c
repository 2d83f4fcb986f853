/* objective.c - the data of an objective. */
#include "train/run/objective.h"

#include <string.h>

/* loss_on, else what MaxText's key says if it was set, else TRL's default. */
static mx_loss_on loss_on(const mx_config *c)
{
    static const char *const names[] = {"all", "completion", "assistant"};
    const char *on = mx_config_text(c, "loss_on");
    for (int i = 0; i < 3; i++)
        if (strcmp(on, names[i]) == 0)
            return (mx_loss_on)i;
    if (mx_config_is_users(c, "sft_train_on_completion_only"))
        return mx_config_bool(c, "sft_train_on_completion_only") ? MX_LOSS_ASSISTANT : MX_LOSS_ALL;
    return strcmp(mx_config_text(c, "semantics"), "maxtext") == 0 ? MX_LOSS_ASSISTANT
                                                                  : MX_LOSS_COMPLETION;
}

void mx_objective_request(const mx_objective *o, const mx_config *c, mx_train_data_request *r)
{
    r->post = o != NULL;
    r->no_loader = o && o->rows == MX_ROWS_SAMPLED;
    r->pairs = o && o->rows == MX_ROWS_PAIRS;
    r->loss_on = !o ? MX_LOSS_ALL : r->pairs ? MX_LOSS_COMPLETION : loss_on(c);
}
