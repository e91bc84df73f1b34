// No thread can be had: the caller does all the work, with the same result.

#define _POSIX_C_SOURCE 200809L

#include "replay-fixture.h"
#include "testing.h"

#include <errno.h>
#include <pthread.h>

static int g_asked;

// stands before the C library's
int pthread_create(pthread_t * thread, const pthread_attr_t * attr, void * (*run)(void *), void * arg) {
    (void) thread;
    (void) attr;
    (void) run;
    (void) arg;
    g_asked++;
    return EAGAIN;
}

int main(void) {
    const struct shape s = { .n_pos = 300, .n_query = 10, .n_q_head = 3, .dim_k = 16, .dim_v = 16, .sinks = 4, .codebook = { 40, 100, HWKV_FULL } };
    struct problem * one  = problem_new(&s, 1);
    struct problem * four = problem_new(&s, 1);
    four->params.n_thread = 4;
    memset(four->out, 0xFF, (size_t) four->n_out * 16 * sizeof(float));
    CHECK_ERR(hwkv_replay(&one->head,  &one->params,  one->q,  one->pos,  10, one->out,  one->mass,  NULL), 0);
    CHECK_EQ_INT(g_asked, 0);
    CHECK_ERR(hwkv_replay(&four->head, &four->params, four->q, four->pos, 10, four->out, four->mass, NULL), 0);
    CHECK_EQ_INT(g_asked, 3);
    CHECK(memcmp(one->out,  four->out,  (size_t) one->n_out * 16 * sizeof(float)) == 0);
    CHECK(memcmp(one->mass, four->mass, (size_t) one->n_out * sizeof(float)) == 0);
    problem_free(one);
    problem_free(four);
    return testing_result();
}
