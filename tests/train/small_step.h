/* small_step.h - one training step of a fixture's model from random weights, on a fixed batch. */
#ifndef MX_TESTS_TRAIN_SMALL_STEP_H
#define MX_TESTS_TRAIN_SMALL_STEP_H

#include "exec/step.h"

typedef struct {
    mx_model_spec model;
    mx_session *session;
    mx_step step, grads; /* a step, and its gradients as roots */
} small_step;

/* The shape, optimizer and precision are the options'; batch and length are set here. */
void small_step_open(small_step *s, const char *fixture, mx_step_options o);
/* Writes n tokens, which are the labels too, to a step and to its gradients; lr is 0.01 and the
 * step number 1. */
void small_step_feed(mx_exec *step, mx_exec *grads, const int32_t *ids, int n);
void small_step_close(small_step *s);
/* The first weight whose name matches; NULL fails the test. */
const mx_var *small_step_weight(small_step *s, const char *pattern);
/* A variable's numbers, from calloc. */
float *small_step_values(small_step *s, const mx_var *v);

#endif
