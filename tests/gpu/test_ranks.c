/* test_ranks.c - ranks wait for each other: what one has written the others see behind the barrier,
 * and a rank that does not come ends the wait. Here all ranks are streams of one device.
 *
 *   gpu_test_ranks lost   the second part, whose error ends the process's use of the device */
#include <string.h>

#include "tests/gpu/gpu_rig.h"
#include "tests/unit/run_suite.h"

enum { RANKS = 4, ROUNDS = 500, WORDS = 4096 };

/* A barrier of so many ranks in fresh memory. */
static void make_barrier(struct peer_barrier b[RANKS])
{
    for (int i = 0; i < RANKS; i++) {
        b[i].n_ranks = RANKS;
        b[i].me = i;
        b[i].last = device_new(sizeof(uint32_t));
        b[0].arrived[i] = device_new(MAX_RANKS * sizeof(uint32_t));
    }
    for (int i = 1; i < RANKS; i++)
        memcpy(b[i].arrived, b[0].arrived, sizeof(b[0].arrived));
}

/* Each rank writes the round's number and, behind the barrier, copies what its neighbour wrote;
 * two buffers by turns, as the all-reduce has them. */
TEST(what_ranks_wrote_is_seen_behind_the_barrier)
{
    struct peer_barrier barriers[RANKS] = {{0}};
    struct launch l[RANKS];
    char *written[RANKS][2];
    uint8_t *seen[RANKS], *host = host_new(ROUNDS, WORDS);

    make_barrier(barriers);
    for (int i = 0; i < RANKS; i++) {
        l[i] = (struct launch){.n_sms = device.launch.n_sms};
        cuda_must(cudaStreamCreateWithFlags(&l[i].stream, cudaStreamNonBlocking));
        written[i][0] = device_new(WORDS);
        written[i][1] = device_new(WORDS);
        seen[i] = device_new((size_t)ROUNDS * WORDS);
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int k = 0; k < RANKS; k++) {
            const int i = (k + round) % RANKS,
                      next = (i + 1) % RANKS; /* another is last each time */

            cuda_must(
                cudaMemsetAsync(written[i][round % 2], (round + i) % 251, WORDS, l[i].stream));
            cuda_must(peer_barrier(&l[i], &barriers[i]));
            cuda_must(cudaMemcpyAsync(seen[i] + (size_t)round * WORDS, written[next][round % 2],
                                      WORDS, cudaMemcpyDeviceToDevice, l[i].stream));
        }
    for (int i = 0; i < RANKS; i++) {
        cuda_must(cudaStreamSynchronize(l[i].stream));
        cuda_must(cudaMemcpy(host, seen[i], (size_t)ROUNDS * WORDS, cudaMemcpyDeviceToHost));
        for (int round = 0; round < ROUNDS; round++)
            for (int k = 0; k < WORDS; k++)
                ck_assert_int_eq(host[round * WORDS + k], (round + (i + 1) % RANKS) % 251);
        cuda_must(cudaStreamDestroy(l[i].stream));
    }
}
END_TEST

/* Prints how long one of four ranks waited for the others, which never came. */
static int lost(void)
{
    struct peer_barrier barriers[RANKS] = {{0}};
    cudaError_t code;
    double begin;

    device_set_up();
    make_barrier(barriers);
    cuda_must(cudaDeviceSynchronize());
    begin = monotonic_seconds();
    cuda_must(peer_barrier(&device.launch, &barriers[0]));
    code = cudaStreamSynchronize(device.launch.stream);
    printf("lost: %s after %.1f s\n", cudaGetErrorName(code), monotonic_seconds() - begin);
    return code == cudaSuccess || monotonic_seconds() - begin > PEER_SECONDS + 3;
}

int main(int argc, char **argv)
{
    ranks_may_share_devices();
    if (argc > 1 && strcmp(argv[1], "lost") == 0)
        return lost();
    return run_tests_here("ranks", device_set_up, device_tear_down);
}
